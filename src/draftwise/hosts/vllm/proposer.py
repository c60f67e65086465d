"""The proposer that vLLM loads (`method="custom_class"`): drafter and draft length for each request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from logging import getLogger
from typing import Any

from ...build import assemble, check_drafters
from ...errors import UserError
from ...models.load import load_tokenizer
from ...specs import LoadOptions, parse_drafters, parse_policy
from ..follow import Engine, Follower, Row
from .options import Options
from .report import Reporter
from .runner import ByText, Probabilities, Step, attach, patch_faults


class Proposer:
    """Drafts for all requests of a vLLM engine, as the policy decides for each.

    With tensor parallelism the first rank decides: vLLM's scheduler takes its drafts and passes them to every
    rank with the next step.

    Raises:
        UserError: fewer `num_speculative_tokens` than the policy may draft.
    """

    def __init__(self, vllm_config: Any, *, options: Options) -> None:
        model = vllm_config.model_config
        self.options, self.config = options, vllm_config
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
        attach("listen")

    def load_model(self, target: Any) -> None:
        """Build the drafters and the policy once vLLM has loaded the target; on the first rank only."""
        weight = next(target.parameters())
        if weight.device.type == "cpu" and (names := patch_faults(weight)):
            getLogger("vllm.draftwise").warning("put right for this process: vLLM's %s", ", ".join(names))
        if _first_rank():
            self.follower = self.follow(self.options, device=str(weight.device))
            self._reporter = Reporter.of(self, self.follower, self.options, self.config)

    def follow(self, options: Options, *, device: str = "cpu") -> Follower:
        """Create the follower with the policy and drafters that the options name."""
        model = self.config.model_config
        trust: bool = model.trust_remote_code
        specs = parse_drafters(options.drafters, LoadOptions(device=device, trust_remote_code=trust))
        check_drafters(specs)
        policy = parse_policy(options.policy) if options.policy else None
        tokenizer = load_tokenizer(model.tokenizer, trust_remote_code=trust)
        engine: Any = self.engine
        parts = assemble(specs, policy, engine, tokenizer, model.model)
        return Follower(parts.team, parts.method, vocab_size=self.engine.vocab_size, seed=options.seed)

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
            drafts = self.follower.step(rows, step.is_alive)
        else:
            keys = self._by_text.keys(sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
            drafts = self.follower.step(self._rows(keys, sampled_token_ids, num_tokens_no_spec, texts))
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
    try:
        return int(import_module("vllm.distributed").get_tensor_model_parallel_rank()) == 0
    except (ImportError, AssertionError):  # not inside an engine
        return True
