"""The proposer that vLLM loads (`method="custom_class"`), or that sits beside vLLM's own.

It decides for each request who drafts and how far.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from logging import getLogger
from typing import Any

from ...build import assemble, check_drafters
from ...errors import UserError
from ...models.load import load_tokenizer
from ...specs import DrafterSpec, LoadOptions, parse_drafters, parse_policy
from ..follow import Engine, Follower, Row
from .model import ModelDrafter
from .names import is_own, own_model, parse_own
from .ngram import NgramDrafter
from .options import EXTENSION, Options
from .report import Reporter
from .runner import ByText, Probabilities, Step, attach, attach_beside, patch_faults


class Proposer:
    """Drafts for all requests of a vLLM engine, as the policy decides for each.

    With tensor parallelism the first rank decides: vLLM's scheduler takes its drafts and passes them to every
    rank with the next step. `own` is vLLM's proposer with a model, if this one sits beside it.

    Raises:
        UserError: fewer `num_speculative_tokens` than the policy may draft.
    """

    def __init__(self, vllm_config: Any, *, options: Options, own: Any = None) -> None:
        model = vllm_config.model_config
        self.options, self.config, self.own = options, vllm_config, own
        self.engine = Engine(int(model.get_vocab_size()), int(model.max_model_len))
        most = int(vllm_config.speculative_config.num_speculative_tokens)
        if options.longest > most:
            raise UserError(
                f"num_speculative_tokens={most}: the policy drafts up to {options.longest}; give that"
            )
        self.follower: Follower | None = None
        self._reporter: Reporter | None = None
        self._step: Step | None = None
        self._raw: Probabilities | None = None
        self._by_text = ByText()
        self.model: ModelDrafter | None = None
        self.lookups: list[NgramDrafter] = []
        attach("listen")

    def load_model(self, target: Any) -> None:
        """Build the drafters and the policy once vLLM has loaded the target; on the first rank only."""
        weight = next(target.parameters())
        if weight.device.type == "cpu" and (names := patch_faults(weight)):
            getLogger("vllm.draftwise").warning("put right for this process: vLLM's %s", ", ".join(names))
        if self.own is not None:
            self.model = self._model()
        if _first_rank():
            self.follower = self.follow(self.options, device=str(weight.device))
            self._reporter = Reporter.of(self, self.follower, self.options, self.config)

    def follow(self, options: Options, *, device: str = "cpu") -> Follower:
        """Create the follower with the policy and drafters that the options name."""
        model = self.config.model_config
        trust: bool = model.trust_remote_code
        load = LoadOptions(device=device, trust_remote_code=trust)
        specs = parse_drafters([self._own(name) if is_own(name) else name for name in options.drafters], load)
        check_drafters(specs)
        policy = parse_policy(options.policy) if options.policy else None
        tokenizer = load_tokenizer(model.tokenizer, trust_remote_code=trust)
        engine: Any = self.engine
        parts = assemble(specs, policy, engine, tokenizer, model.model)
        return Follower(parts.team, parts.method, vocab_size=self.engine.vocab_size, seed=options.seed)

    def _own(self, text: str) -> DrafterSpec:
        """Return one of vLLM's own proposers as a drafter.

        Raises:
            UserError: a model that vLLM has not loaded.
        """
        name = parse_own(text)
        drafter: ModelDrafter | NgramDrafter
        if not name.is_model:
            drafter = NgramDrafter(name, self.config)
            self.lookups.append(drafter)
        elif self.model is None or self.model.name != name:
            raise UserError(f"drafter {text}: vLLM has not loaded it; start it with `vllm_arguments`")
        else:
            drafter = self.model
        return DrafterSpec("", text=text, loaded=drafter)

    def _model(self) -> ModelDrafter:
        """Return the drafter that calls vLLM's own proposer.

        Raises:
            UserError: something that it does not do.
        """
        name = own_model(self.options.drafters)
        if name is None or self.own is None:
            raise UserError("vLLM loads a model that none of the drafters names; use `vllm_arguments`")
        check_own(name.text, self.config, self.own)
        self.config.speculative_config.disable_padded_drafter_batch = True  # asks when the tokens are known
        group = _tensor_parallel()
        return ModelDrafter(name, self.own, self._key, group)

    def _key(self, request: int) -> Any:
        """Return vLLM's id of an open request."""
        return self.follower.key(request) if self.follower else None

    def drive(self, step: Step, given: Mapping[str, Any]) -> list[list[int]]:
        """Draft in place of vLLM's own proposer: `given` are the arguments that it would get."""
        sampled, batch = given["sampled_token_ids"], step.runner.input_batch
        if self.model is None:
            raise UserError("vLLM called a drafter that is not loaded")
        self.model.begin(step, given)
        if self.follower is None:
            self.model.follow()
            return [[] for _ in sampled]
        self.listen(step)
        drafts = self.propose(sampled, batch.num_tokens_no_spec, batch.token_ids_cpu)
        if (rows := self.model.end(drafts)) is not None:
            step.runner._draft_probs, step.runner._draft_prob_req_ids = rows, batch.req_ids.copy()
        return drafts

    def listen(self, step: Step) -> None:
        """Receive the model runner's step before its call of `propose`."""
        self._step = step
        if self._raw is None and self.follower and "overlap" in self.follower.recorder.reads:
            self._raw = Probabilities(step.runner)

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: Any,
        token_ids_cpu: Any,
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """A draft for each row of the batch; rows in the middle of their prefill get none."""
        step, self._step = self._step, None
        if self.follower is None or self._reporter is None:
            return [[] for _ in sampled_token_ids]
        texts = [
            _text(token_ids_cpu, i, int(n))
            for i, n in enumerate(num_tokens_no_spec[: len(sampled_token_ids)])
        ]
        if step is not None:
            raw = self._raw.take() if self._raw else ()
            rows = step.rows(sampled_token_ids, texts, self.engine.max_length, raw)
        else:
            keys = self._by_text.keys(sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
            rows = self._rows(keys, sampled_token_ids, num_tokens_no_spec, texts)
        for lookup in self.lookups:
            lookup.begin({row.key: i for i, row in enumerate(rows)}, token_ids_cpu, self.follower.key)
        drafts = self.follower.step(rows, step.is_alive if step else None)
        self._reporter.tick()
        return drafts

    def _rows(
        self, keys: Sequence[int], sampled: Any, lengths: Any, texts: Sequence[Callable[[int], list[int]]]
    ) -> list[Row]:
        """The batch without the runner's data: a prompt ends where its request was first seen."""
        rows = []
        for i, (key, new) in enumerate(zip(keys, sampled, strict=True)):
            n = int(lengths[i])
            rows.append(Row(key, n, new, texts[i], n - len(new), self.engine.max_length - n))
        return rows


def _text(token_ids: Any, row: int, length: int) -> Callable[[int], list[int]]:
    def text(start: int) -> list[int]:
        tokens: list[int] = token_ids[row, start:length].tolist()
        return tokens

    return text


def _first_rank() -> bool:
    group = _tensor_parallel()
    return group is None or int(group.rank_in_group) == 0


def _tensor_parallel() -> Any:
    """Return vLLM's group of tensor parallel ranks; None outside of an engine."""
    try:
        return import_module("vllm.distributed").get_tp_group()
    except (ImportError, AssertionError):
        return None


class Extension:
    """A base of vLLM's workers that adds nothing: to load it puts our proposers beside vLLM's own."""


def extend_workers() -> type[Extension]:
    """Return the extension for vLLM's workers, which decides for the drafter that vLLM loads.

    Raises:
        UserError: a vLLM without what this needs.
    """
    if not (attach("listen") and attach_beside(_beside)):
        raise UserError("this vLLM has no proposers of its own that can be called; use `vllm_config`")
    check_runner()
    return Extension


def check_runner() -> None:
    """Check that vLLM uses the model runner that takes drafts of any length.

    Raises:
        UserError: it may use its new one, whose drafters are built in.
    """
    envs, has_triton = (
        import_module("vllm.envs"),
        getattr(import_module("vllm.triton_utils"), "HAS_TRITON", True),
    )
    if has_triton and getattr(envs, "VLLM_USE_V2_MODEL_RUNNER", False) is not False:
        raise UserError(
            "vLLM's new model runner takes no drafter from outside; set VLLM_USE_V2_MODEL_RUNNER=0"
        )


def check_own(name: str, config: Any, own: Any) -> None:
    """Check that vLLM's proposer can be called for some requests only.

    Raises:
        UserError: what cannot be.
    """
    if config.parallel_config.data_parallel_size > 1:
        raise UserError(
            f"drafter {name}: ranks of a mixture of experts draft in step; start replicas of one rank"
        )
    if getattr(own, "supports_mm_inputs", False) or getattr(own, "uses_mrope", False):
        raise UserError(f"drafter {name}: it reads images, which are not passed on; use a model of text")
    if getattr(own, "parallel_drafting", False):
        raise UserError(
            f"drafter {name}: it drafts all tokens at once; use eagle3, eagle, mtp or draft_model"
        )


def _beside(own: Any, target: Any) -> Proposer | None:
    """Return the proposer for an engine whose workers are ours, None for others."""
    config = own.vllm_config
    name = str(getattr(config.parallel_config, "worker_extension_cls", ""))
    if not name.startswith(EXTENSION):
        return None
    proposer = Proposer(config, options=Options.parse(name.partition("?")[2]), own=own)
    proposer.load_model(target)
    return proposer
