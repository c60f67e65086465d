"""The proposer that vLLM loads (`method="custom_class"`), or that sits beside vLLM's own.

It decides for each request who drafts and how far.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from logging import getLogger
from typing import Any

from ...errors import UserError
from ...models.load import load_tokenizer
from ...specs import DrafterSpec, LoadOptions, parse_drafters
from ..follow import Follower, build_follower
from .drafters import ModelDrafter, NgramDrafter
from .options import EXTENSION, EngineDrafter, Options, is_own, own_model
from .report import Reporter
from .runner import Probabilities, Step, attach, attach_beside, patch_faults


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
        self.vocab_size, self.max_length = int(model.get_vocab_size()), int(model.max_model_len)
        most = int(vllm_config.speculative_config.num_speculative_tokens)
        if options.longest > most:
            raise UserError(
                f"num_speculative_tokens={most}: the policy drafts up to {options.longest}; give that"
            )
        self.follower: Follower | None = None
        self._reporter: Reporter | None = None
        self._step: Step | None = None
        self._raw: Probabilities | None = None
        self.model: ModelDrafter | None = None
        self.lookups: list[NgramDrafter] = []
        attach()

    def load_model(self, target: Any) -> None:
        """Build the drafters and the policy once vLLM has loaded the target; on the first rank only."""
        weight = next(target.parameters())
        if weight.device.type == "cpu" and (names := patch_faults(weight)):
            getLogger("vllm.draftwise").warning("put right for this process: vLLM's %s", ", ".join(names))
        if self.own is not None:
            self.model = self._model(self.own)
        group = _tensor_parallel()
        if group is None or int(group.rank_in_group) == 0:
            self.follower = self.follow(self.options, device=str(weight.device))
            self._reporter = Reporter(self, self.follower, self.options, self.config)

    def follow(self, options: Options, *, device: str = "cpu") -> Follower:
        """Create the follower with the policy and drafters that the options name."""
        model = self.config.model_config
        trust: bool = model.trust_remote_code
        load = LoadOptions(device=device, trust_remote_code=trust)
        specs = parse_drafters([self._own(name) if is_own(name) else name for name in options.drafters], load)
        return build_follower(
            specs,
            options.policy,
            vocab_size=self.vocab_size,
            max_length=self.max_length,
            tokenizer=load_tokenizer(model.tokenizer, trust_remote_code=trust),
            target=model.model,
            seed=options.seed,
        )

    def _own(self, text: str) -> DrafterSpec:
        """Return one of vLLM's own proposers as a drafter."""
        name = EngineDrafter.parse(text)
        if not name.is_model:
            self.lookups.append(NgramDrafter(name, self.config))
            return DrafterSpec("", text=text, loaded=self.lookups[-1])
        if self.model is None or self.model.name != name:
            raise UserError(f"drafter {text}: vLLM has not loaded it; start it with `vllm_arguments`")
        return DrafterSpec("", text=text, loaded=self.model)

    def _model(self, own: Any) -> ModelDrafter:
        if (name := own_model(self.options.drafters)) is None:
            raise UserError("vLLM loads a model that none of the drafters names; use `vllm_arguments`")
        check_own(name.text, self.config, own)
        self.config.speculative_config.disable_padded_drafter_batch = True  # asks when the tokens are known
        return ModelDrafter(name, own, self._key, _tensor_parallel())

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
        if self.follower is None or self._reporter is None:
            return [[] for _ in sampled_token_ids]
        step, self._step = self._step, None
        if step is None:
            raise UserError("this vLLM has no `propose_draft_token_ids`, which gives drafters their requests")
        raw = self._raw.take() if self._raw else ()
        rows = step.rows(sampled_token_ids, token_ids_cpu, self.max_length, raw)
        for lookup in self.lookups:
            lookup.begin({row.key: i for i, row in enumerate(rows)}, token_ids_cpu, self.follower.key)
        drafts = self.follower.step(rows, step.is_alive)
        self._reporter.tick()
        return drafts


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
    if not (attach() and attach_beside(_beside)):
        raise UserError("this vLLM has no proposers of its own that can be called; use `vllm_config`")
    check_runner()
    return Extension


def check_runner() -> None:
    """Check that vLLM uses the model runner that takes drafts of any length.

    Raises:
        UserError: it may use its new one, whose drafters are built in.
    """
    envs, triton = import_module("vllm.envs"), import_module("vllm.triton_utils")
    if getattr(triton, "HAS_TRITON", True) and getattr(envs, "VLLM_USE_V2_MODEL_RUNNER", False) is not False:
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
    proposer = Proposer(config, options=Options.parse(name), own=own)
    proposer.load_model(target)
    return proposer
