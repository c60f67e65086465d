"""Puts a target and its drafters together from names or loaded models."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from logging import getLogger
from typing import Any, NamedTuple

from . import registry
from .core.roles import Drafter, Grader, Matcher, Target
from .drafters.cascade import TogetherDrafter
from .drafters.lookup.datastore import tokenizer_fingerprint
from .errors import DraftwiseWarning, UserError
from .inputs import show
from .models.fingerprints import drafter_fingerprint
from .models.huge_pages import use_huge_pages
from .models.load import disagreement, load_model, load_tokenizer
from .models.runner.executors.compile import check_mode, compile_runner
from .models.weights.packed import arrange, checked
from .models.weights.timing import WIDTHS
from .policies.arms import TOGETHER
from .policies.catalogue import Method, default, method, weighs_cascades
from .specs import DrafterSpec, ModelSpec, PolicySpec, name_cascades, parse_drafter, parse_policy

LOG = getLogger(__name__)


def build_target(target: ModelSpec, tokenizer: Any = None) -> tuple[Target, Any, Any]:
    """Return the target role, the underlying model and the tokenizer; `compile_target` is for later."""
    load = target.load
    checked(load.pack)
    check_mode(load.compile)
    if load.device is None:
        raise UserError("device=None: choose auto, cpu, cuda or mps")
    tokenizer = known_tokenizer(tokenizer, trust_remote_code=load.trust_remote_code)
    if target.is_gguf:
        file = _with_device(target)
        if load.exact and (
            file.options.get("exact") == "false" or file.options.get("gpu_layers", "0") != "0"
        ):
            raise UserError(f"exact=True and {target.text}: give device=cpu, and no exact=false")
        opened = registry.build("targets", file, target.path)
        if load.exact and opened.model.stateful:
            raise UserError(f"exact=True and {target.text}: it keeps a state; leave exact out")
        return opened, opened.model, tokenizer or opened.model.tokenizer
    model = target.loaded
    if model is None:
        tokenizer = tokenizer or load_tokenizer(target.path, trust_remote_code=load.trust_remote_code)
        lazy = bool(load.pack)
        model = load_model(target.path, device_map=load.device_map, lazy=lazy, **load.for_transformers())
    elif tokenizer is None:
        raise UserError("a target given as a model needs its tokenizer: pass tokenizer=...")
    elif not hasattr(model, "config"):
        raise UserError(f"target {show(model)} is not a model: give a name, or a loaded model")
    built: Any = registry.load("targets", "hf")(model, probe=load.probe)
    if target.loaded is None:
        arrange(model, load.pack, exact=load.exact)
    else:
        use_huge_pages(model)
    return built, model, tokenizer


def compile_target(target: ModelSpec, built: Target) -> None:
    """Compile the target's passes, once its drafters have asked for the hidden states that they return."""
    if not target.is_gguf:
        compile_runner(built, target.load.compile, exact=target.load.exact)


def known_tokenizer(tokenizer: Any, *, trust_remote_code: bool = False) -> Any:
    """Return a tokenizer as it is, or loaded by a model's name; None stays None."""
    if isinstance(tokenizer, str):
        return load_tokenizer(tokenizer, trust_remote_code=trust_remote_code)
    if tokenizer is not None and not (callable(tokenizer) and hasattr(tokenizer, "decode")):
        raise UserError(f"tokenizer={show(tokenizer)}: give a model's name, or a loaded tokenizer")
    return tokenizer


def _with_device(file: ModelSpec) -> ModelSpec:
    """Return a GGUF file with the options that `device` stands for."""
    load = file.load
    if load.dtype != "auto" or load.device_map is not None:
        wrong = f"dtype={load.dtype}" if load.dtype != "auto" else "device_map"
        raise UserError(f"{wrong} and {file.path}: a GGUF file keeps its precision and place; leave it out")
    on_cpu = {"gpu_layers": "0"} if str(load.device) == "cpu" else {}
    return replace(file, options=on_cpu | {**file.options})


def build_drafters(
    drafters: Sequence[DrafterSpec], target: Target, tokenizer: Any, target_name: str
) -> dict[str, Drafter]:
    """Return all drafters, by the names under which they were requested."""
    team: dict[str, Drafter] = {}
    for spec in drafters:
        if spec.loaded is not None:
            team[spec.text] = _from_object(spec, target)
        elif spec.is_gguf:
            team[spec.text] = _load_gguf(spec, target, tokenizer)
        elif spec.is_model:
            team[spec.text] = _load_lm(spec, target, tokenizer)
        else:
            team[spec.text] = _build_registered(spec, target, tokenizer)
    for spec in drafters:  # once all are loaded
        compile_runner(team[spec.text], spec.load.compile)
        if way := getattr(team[spec.text], "way", ""):
            LOG.info("drafter %s has another tokenizer than %s: vocabulary=%s", spec.text, target_name, way)
    return team


def _needed(tokenizer: Any, name: str) -> Any:
    """Return the target's tokenizer, which this drafter is checked with."""
    if tokenizer is None:
        raise UserError(f"drafter {name}: the target's tokenizer is needed to check it; pass tokenizer=...")
    return known_tokenizer(tokenizer)


def _build_registered(spec: DrafterSpec, target: Target, tokenizer: Any) -> Drafter:
    """Build a drafter with its path, and with the target if it takes one."""
    arguments: list[Any] = [spec.path] if spec.path else []
    if "target" in inspect.signature(registry.load("drafters", spec.name)).parameters:
        if not hasattr(target, "hidden_states"):
            raise UserError(
                f"drafter {spec.name}: it needs the target's hidden states, which {type(target).__name__} "
                "does not hand out; leave it out, or use it with a Decoder of a model of Transformers"
            )
        arguments.append(target)
    built: Any = registry.build("drafters", spec, *arguments)
    if hasattr(built, "module"):
        arrange(built.module, spec.load.pack, widths=getattr(built, "widths", WIDTHS))
    if hasattr(built, "check"):
        vocabulary = _needed(tokenizer, spec.text).get_vocab()
        built.check(target.vocab_size, tokenizer_fingerprint(vocabulary))
    drafter: Drafter = built
    return drafter


class Assembled(NamedTuple):
    """Drafters by name, the policy for them, and the specs of both."""

    team: dict[str, Drafter]
    method: Method
    policy: PolicySpec
    drafters: Mapping[str, DrafterSpec]


def assemble(
    drafters: Sequence[DrafterSpec],
    policy: PolicySpec | None,
    target: Target,
    tokenizer: Any,
    target_name: str,
    *,
    chains_only: str = "",
) -> Assembled:
    """Return the drafters and their policy, checked against each other and the target's tokenizer.

    Where something reads chains only, such as `exact=True`, a policy that drafts trees is refused.
    """
    team = build_drafters(drafters, target, tokenizer, target_name)
    policy = policy or parse_policy(default(team))
    team = composed(team, policy)
    specs = {spec.text: spec for spec in drafters}
    specs |= {cascade: parse_drafter(cascade) for cascade in team if cascade not in specs}
    LOG.info("policy %s over drafters %s", policy.text, ", ".join(team) or "none")
    return Assembled(team, decide(policy, team, tokenizer, specs, chains_only=chains_only), policy, specs)


def composed(team: dict[str, Drafter], policy: PolicySpec) -> dict[str, Drafter]:
    """Return the drafters, plus cascades of each model and the first lookup if the policy weighs them."""
    if not weighs_cascades(policy):
        return team
    lookups = [name for name, drafter in team.items() if isinstance(drafter, Matcher)]
    graders = [name for name, drafter in team.items() if isinstance(drafter, Grader) and name not in lookups]
    models = [name for name in graders if getattr(team[name], "begins_cascades", True)]
    cascades = map(parse_drafter, name_cascades(models, lookups, team))
    return team | {spec.text: registry.build("drafters", spec, spec.path) for spec in cascades}


def decide(
    policy: PolicySpec,
    team: Mapping[str, Drafter],
    tokenizer: Any,
    specs: Mapping[str, DrafterSpec],
    *,
    chains_only: str = "",
) -> Method:
    """Return the policy for existing drafters, with the same checks."""
    chosen = method(policy, list(team))
    if chains_only:
        _refuse_trees(chains_only, policy.text, chosen, team)
    check_policy(chosen, tokenizer, specs)
    warn_of_stops(policy.text, chosen, team)
    return chosen


def _refuse_trees(reader: str, name: str, chosen: Method, team: Mapping[str, Drafter]) -> None:
    """Reject a policy that drafts trees; one with chains of the drafter asks if trees can be read."""
    chains = {arm.drafter for arm in chosen.policy.arms if arm.width == 1}
    for arm in chosen.policy.arms:
        if arm.width > 1 and arm.drafter in chains:
            continue
        members = team if arm.drafter == TOGETHER else {arm.drafter: team.get(arm.drafter)}
        if arm.length and max(arm.width, *(getattr(one, "branches", 1) for one in members.values())) > 1:
            raise UserError(
                f"{reader} reads no trees of drafted tokens, and the policy {name} drafts some, with its arm "
                f"{arm.name}: name another policy or drafter"
            )


def warn_of_stops(name: str, chosen: Method, team: Mapping[str, Drafter]) -> None:
    """Warn where stop rules read a model's probabilities and a drafter has none.

    `auto` is left out: its rule reads acceptance rates that are calibrated for each drafter.
    """
    rules = [*getattr(chosen.policy, "rules", ()), *(arm.stop for arm in chosen.policy.arms)]
    names = dict.fromkeys(arm.drafter for arm in chosen.policy.arms)
    blind = [one for one in names if one in team and not getattr(team[one], "has_probabilities", True)]
    if blind and any(rule.rule not in ("never", "gain") for rule in rules):
        warnings.warn(
            f"the stop rules of {name} read a model's probabilities, and {', '.join(blind)} has only the "
            "frequencies of its matches: a rule may stop all drafts at once or none; give a model as drafter",
            DraftwiseWarning,
            stacklevel=4,  # the caller of `Decoder.from_pretrained`
        )


def complete(team: dict[str, Drafter], method: Method) -> dict[str, Drafter]:
    """The drafters, plus the one that combines all others if the policy has an arm for it."""
    if any(arm.drafter == TOGETHER for arm in method.policy.arms):
        return team | {TOGETHER: TogetherDrafter()}
    return team


def check_policy(method: Method, tokenizer: Any, specs: Mapping[str, DrafterSpec]) -> None:
    """Check that a trained policy was trained for this tokenizer and these drafters.

    A classifier for another drafter may still help: it is used, with a warning.
    """
    for arm in method.policy.arms:
        made_for = getattr(getattr(arm.stop, "scorer", None), "drafter", "")
        spec = specs.get(arm.drafter)
        named = spec is not None and spec.loaded is None  # a loaded model's fingerprint is another
        if made_for and named and drafter_fingerprint(spec) != made_for:
            warnings.warn(
                f"the classifier was trained for another drafter than {arm.drafter}: train one for it with "
                "`draftwise train classifier`",
                DraftwiseWarning,
                stacklevel=5,  # the caller of `Decoder.from_pretrained`
            )
            break
    check = getattr(method.policy, "check", None)
    if check is not None and tokenizer is not None:
        check(tokenizer_fingerprint(tokenizer.get_vocab()))


def _load_lm(spec: DrafterSpec, target: Target, tokenizer: Any) -> Drafter:
    tokenizer = _needed(tokenizer, spec.text)
    theirs = load_tokenizer(spec.path, trust_remote_code=spec.load.trust_remote_code)
    pair = None if disagreement(theirs, tokenizer) is None else (tokenizer, theirs)
    model = load_model(spec.path, **spec.load.for_transformers())
    arrange(model, spec.load.pack)
    spec = replace(spec, path="", options={"probe": str(_is_probed(target)), **spec.options})
    drafter: Drafter = registry.build("drafters", spec, model, target.vocab_size, pair)
    return drafter


def _load_gguf(spec: DrafterSpec, target: Target, tokenizer: Any) -> Drafter:
    """Load a GGUF file; one without a vocabulary must have as many tokens as the target."""
    built: Any = registry.build("drafters", _with_device(spec), spec.path, target.vocab_size, tokenizer)
    model = getattr(built, "model", None)
    if model is not None and model.has_vocabulary:
        _needed(tokenizer, spec.text)
    elif model is not None and model.vocab_size != target.vocab_size:
        raise UserError(
            f"the drafter {spec.path} has {model.vocab_size} tokens and no vocabulary, and the target "
            f"{target.vocab_size}: choose a drafter of the target's family"
        )
    drafter: Drafter = built
    return drafter


def _from_object(spec: DrafterSpec, target: Target) -> Drafter:
    """Return a drafter object unchanged, or a loaded causal LM, whose vocabulary may be padded."""
    model = spec.loaded
    if isinstance(model, Drafter):
        return model
    if not hasattr(model, "config"):
        raise UserError(f"drafter {show(model)} is not a drafter: give a name, a loaded model, or a Drafter")
    encodes = bool(getattr(model.config, "is_encoder_decoder", False))
    if encodes and not getattr(target, "encodes", False):
        raise UserError(
            f"the drafter {spec.text} is an encoder-decoder, and the target is none: give a causal LM"
        )
    size = int(model.config.get_text_config(decoder=True).vocab_size)
    if abs(size - target.vocab_size) > 1024:
        raise UserError(
            f"the drafter {spec.text} has {size} tokens and the target {target.vocab_size}: "
            "choose a drafter of the target's family"
        )
    if encodes:
        from .drafters.neural.prompted import PromptedDrafter

        return PromptedDrafter(model, target.vocab_size)
    built: Drafter = registry.load("drafters", "lm")(model, target.vocab_size, probe=_is_probed(target))
    return built


def _is_probed(target: Target) -> bool:
    """Drafters are probed if their target is."""
    return bool(getattr(target, "probe", True))


def eos_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """The tokens that end a text, by the model's generation settings, its configuration, or its tokenizer."""
    for source in (getattr(model, "generation_config", None), model.config, tokenizer):
        ids = getattr(source, "eos_token_id", None)
        ids = ids if isinstance(ids, (list, tuple)) else [ids]
        if found := frozenset(int(token) for token in ids if token is not None):
            return found
    return frozenset()
