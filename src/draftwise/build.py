"""Puts a target and its drafters together from names or loaded models."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from logging import getLogger
from typing import Any, NamedTuple

from . import registry
from .core.roles import Drafter, Grader, Matcher, Target
from .drafters.together import TogetherDrafter
from .errors import DraftwiseWarning, UserError
from .models import compiled
from .models.fingerprints import drafter_fingerprint
from .models.gguf.names import gguf_spec
from .models.load import load_model, load_tokenizer
from .models.vocabulary import disagreement
from .models.weights.packed import arrange, checked
from .names import check_names
from .policies.arms import TOGETHER
from .policies.catalogue import Method, default, method, weighs_cascades
from .registry.cascades import with_lookup

LOG = getLogger(__name__)


def build_target(
    target: Any,
    tokenizer: Any,
    *,
    pack: bool | str,
    compile: str = "off",
    probe: bool = True,
    device_map: Any,
    **load: Any,
) -> tuple[Target, Any, Any]:
    """The target role, the underlying model and the tokenizer.

    Raises:
        UserError: something that does not exist, or is not what it was given as.
    """
    model = target
    checked(pack)
    compiled.checked(compile)
    if load["device"] is None:
        raise UserError("device=None: choose auto, cpu, cuda or mps")
    tokenizer = known_tokenizer(tokenizer, trust_remote_code=load["trust_remote_code"])
    if isinstance(target, str) and (file := gguf_spec(target)) is not None:
        opened = registry.build("targets", _opened(file, device_map=device_map, **load), file.path)
        return opened, opened.model, tokenizer or opened.model.tokenizer
    if isinstance(target, str):
        tokenizer = tokenizer or load_tokenizer(target, trust_remote_code=load["trust_remote_code"])
        model = load_model(target, device_map=device_map, **load)
    elif tokenizer is None:
        raise UserError("a target given as a model needs its tokenizer: pass tokenizer=...")
    elif not hasattr(model, "config"):
        raise UserError(f"target {target!r} is not a model: give a name, or a loaded model")
    built: Any = registry.load("targets", "hf")(model, probe=probe)
    if isinstance(target, str):
        arrange(model, pack)
    compiled.compile_rows(built.rows, compile)
    return built, model, tokenizer


def known_tokenizer(tokenizer: Any, *, trust_remote_code: bool = False) -> Any:
    """A tokenizer as it is, or loaded by a model's name; None stays None.

    Raises:
        UserError: there is none under this name, or it is no tokenizer.
    """
    if isinstance(tokenizer, str):
        return load_tokenizer(tokenizer, trust_remote_code=trust_remote_code)
    if tokenizer is not None and not (callable(tokenizer) and hasattr(tokenizer, "decode")):
        raise UserError(f"tokenizer={tokenizer!r}: give a model's name, or a loaded tokenizer")
    return tokenizer


def _opened(
    file: registry.Spec, *, dtype: Any, device: Any, device_map: Any = None, **_: Any
) -> registry.Spec:
    """A GGUF file with the options that `device` stands for.

    Raises:
        UserError: a setting that such a file does not take.
    """
    if dtype != "auto" or device_map is not None:
        said = f"dtype={dtype}" if dtype != "auto" else "device_map"
        raise UserError(f"{said} and {file.path}: a GGUF file keeps its precision and place; leave it out")
    own = {"gpu_layers": "0"} if str(device) == "cpu" else {}
    return registry.Spec(file.name, options=own | {**file.options})


def build_drafters(
    drafters: Sequence[Any],
    target: Target,
    tokenizer: Any,
    target_name: Any,
    *,
    pack: bool | str,
    compile: str = "off",
    **load: Any,
) -> dict[str, Drafter]:
    """All drafters, by the names under which they were requested."""
    check_names(drafters)
    team: dict[str, Drafter] = {}
    for asked in registry.listed(drafters, "drafters"):
        name = asked.strip() if isinstance(asked, str) else _name(asked)
        if not name or name in team:
            raise UserError(
                f"drafter {name!r} is {'repeated' if name else 'without a name'}: give each drafter once"
            )
        if not isinstance(asked, str):
            team[name] = _from_object(asked, target)
            continue
        spec = registry.parse(name)
        known = registry.names("drafters")
        if (file := gguf_spec(name)) is not None:
            team[name] = _load_gguf(name, file, target, tokenizer, **load)
        elif spec.name in known and spec.name != "lm":
            team[name] = _registered(spec, target, pack=pack)
            if hasattr(team[name], "check"):
                from .drafters.lookup.datastore import tokenizer_fingerprint

                vocabulary = _needed(tokenizer, name).get_vocab()
                team[name].check(target.vocab_size, tokenizer_fingerprint(vocabulary))  # type: ignore[attr-defined]
        else:
            team[name] = _load_lm(name, spec, target, tokenizer, pack=pack, **load)
    for name, drafter in team.items():
        compiled.compile_part(drafter, compile)
        if way := getattr(drafter, "way", ""):
            LOG.info("drafter %s has another tokenizer than %s: vocabulary=%s", name, target_name, way)
    return team


def _needed(tokenizer: Any, name: str) -> Any:
    """The target's tokenizer, which this drafter is checked with."""
    if tokenizer is None:
        raise UserError(f"drafter {name}: the target's tokenizer is needed to check it; pass tokenizer=...")
    return known_tokenizer(tokenizer)


def _registered(spec: registry.Spec, target: Target, *, pack: bool | str) -> Drafter:
    """A drafter of the registry, built with its path, and with the target if it takes one."""
    arguments: list[Any] = [spec.path] if spec.path else []
    if "target" in inspect.signature(registry.load("drafters", spec.name)).parameters:
        if not hasattr(target, "features"):
            raise UserError(
                f"drafter {spec.name}: it needs the target's hidden states, which {type(target).__name__} "
                "does not hand out; use it with a Decoder"
            )
        arguments.append(target)
    built: Drafter = registry.build("drafters", spec, *arguments)
    if hasattr(built, "module"):
        arrange(built.module, pack)
    return built


class Assembled(NamedTuple):
    """Drafters by name, the policy for them, and how both were requested."""

    team: dict[str, Drafter]
    method: Method
    policy: str
    asked: Mapping[str, Any]


def assemble(
    drafters: Sequence[Any],
    policy: str,
    target: Target,
    tokenizer: Any,
    target_name: Any,
    *,
    pack: bool | str,
    compile: str = "off",
    **load: Any,
) -> Assembled:
    """The drafters and their policy, checked against each other and the target's tokenizer.

    Used by `Decoder` and by the hosts.

    Raises:
        UserError: an unknown name or option, or parts that do not fit together.
    """
    drafters = registry.listed(drafters, "drafters")
    team = build_drafters(drafters, target, tokenizer, target_name, pack=pack, compile=compile, **load)
    asked, name = dict(zip(team, drafters, strict=True)), policy or default(team)
    team = composed(team, name)
    asked |= {cascade: cascade for cascade in team if cascade not in asked}
    LOG.info("policy %s over drafters %s", name, ", ".join(team) or "none")
    return Assembled(team, decide(name, team, tokenizer, asked), name, asked)


def composed(team: dict[str, Drafter], policy: str) -> dict[str, Drafter]:
    """The drafters, plus cascades of each model and the first lookup if the policy weighs them."""
    if not weighs_cascades(policy):
        return team
    lookups = [name for name, drafter in team.items() if isinstance(drafter, Matcher)]
    models = [name for name, drafter in team.items() if isinstance(drafter, Grader) and name not in lookups]
    specs = {name: registry.parse(name) for name in with_lookup(models, lookups, team)}
    return team | {name: registry.build("drafters", spec, spec.path) for name, spec in specs.items()}


def decide(policy: str, team: Mapping[str, Drafter], tokenizer: Any, asked: Mapping[str, Any]) -> Method:
    """The policy of this name for existing drafters, with the same checks."""
    chosen = method(policy, list(team))
    check_policy(chosen, tokenizer, asked)
    warn_of_stops(policy, chosen, team)
    return chosen


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


def check_policy(method: Method, tokenizer: Any, asked: Mapping[str, Any]) -> None:
    """Check that a trained policy was trained for this tokenizer and these drafters.

    A classifier for another drafter may still help: it is used, with a warning.

    Raises:
        UserError: it was trained for another tokenizer.
    """
    for arm in method.policy.arms:
        made_for = getattr(getattr(arm.stop, "scorer", None), "drafter", "")
        name = asked.get(arm.drafter)  # a loaded model has no fingerprint to compare with a file
        if made_for and isinstance(name, str) and drafter_fingerprint(name) != made_for:
            warnings.warn(
                f"the classifier was trained for another drafter than {arm.drafter}: train one for it with "
                "`draftwise train classifier`",
                DraftwiseWarning,
                stacklevel=5,  # the caller of `Decoder.from_pretrained`
            )
            break
    check = getattr(method.policy, "check", None)
    if check is not None and tokenizer is not None:
        from .drafters.lookup.datastore import tokenizer_fingerprint

        check(tokenizer_fingerprint(tokenizer.get_vocab()))


def _load_lm(
    name: str,
    spec: registry.Spec,
    target: Target,
    tokenizer: Any,
    *,
    pack: bool | str,
    **load: Any,
) -> Drafter:
    path = spec.path if spec.name == "lm" else name.partition("?")[0]
    tokenizer = _needed(tokenizer, name)
    theirs = load_tokenizer(path, trust_remote_code=load["trust_remote_code"])
    other = disagreement(theirs, tokenizer) is not None
    model = load_model(path, **load)
    arrange(model, pack)
    spec = registry.Spec("lm", options={"probe": str(_probed(target)), **spec.options})
    pair = (tokenizer, theirs) if other else None
    built: Drafter = registry.build("drafters", spec, model, target.vocab_size, pair)
    return built


def _load_gguf(name: str, file: registry.Spec, target: Target, tokenizer: Any, **load: Any) -> Drafter:
    """A GGUF file as drafter; one without a vocabulary must have as many tokens as the target."""
    built: Any = registry.build("drafters", _opened(file, **load), file.path, target.vocab_size, tokenizer)
    model = getattr(built, "model", None)
    if model is not None and model.has_vocabulary:
        _needed(tokenizer, name)
    if model is not None and not model.has_vocabulary and model.vocab_size != target.vocab_size:
        raise UserError(
            f"the drafter {file.path} has {model.vocab_size} tokens and no vocabulary, and the target "
            f"{target.vocab_size}: choose a drafter of the target's family"
        )
    drafter: Drafter = built
    return drafter


def _from_object(model: Any, target: Target) -> Drafter:
    """A drafter object unchanged, or a loaded causal LM whose vocabulary differs at most by padding."""
    if isinstance(model, Drafter):
        return model
    if not hasattr(model, "config"):
        raise UserError(f"drafter {model!r} is not a drafter: give a name, a loaded model, or a Drafter")
    encodes = bool(getattr(model.config, "is_encoder_decoder", False))
    if encodes and not getattr(target, "encodes", False):
        raise UserError(
            f"the drafter {_name(model)} is an encoder-decoder, and the target is none: give a causal LM"
        )
    size = int(model.config.get_text_config(decoder=True).vocab_size)
    if abs(size - target.vocab_size) > 1024:
        raise UserError(
            f"the drafter {_name(model)} has {size} tokens and the target {target.vocab_size}: "
            "choose a drafter of the target's family"
        )
    if encodes:
        from .drafters.neural.prompted import PromptedDrafter

        return PromptedDrafter(model, target.vocab_size)
    built: Drafter = registry.load("drafters", "lm")(model, target.vocab_size, probe=_probed(target))
    return built


def _probed(target: Target) -> bool:
    """Drafters are probed if their target is."""
    return bool(getattr(target, "probe", True))


def _name(model: Any) -> str:
    return str(getattr(model, "name_or_path", "") or type(model).__name__)


def eos_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Every token that ends a text, by the model's generation settings and by its tokenizer."""
    found: set[int] = set()
    for source in (getattr(model, "generation_config", None), model.config, tokenizer):
        ids = getattr(source, "eos_token_id", None)
        if ids is not None:
            found |= {int(i) for i in (ids if isinstance(ids, (list, tuple)) else [ids])}
            if source is not tokenizer:
                break
    if tokenizer is not None and not found and tokenizer.eos_token_id is not None:
        found.add(int(tokenizer.eos_token_id))
    return frozenset(found)
