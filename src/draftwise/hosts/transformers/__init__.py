"""Draftwise inside Transformers: `model.generate(**inputs, custom_generate=transformers_generate(...))`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from os import PathLike
from threading import get_ident
from typing import Any, NamedTuple, cast
from weakref import finalize

import torch
from torch import Tensor
from torch.nn import Module
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList
from transformers.generation.stopping_criteria import StopStringCriteria
from transformers.generation.utils import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput

from ...build import assemble, complete, known_tokenizer
from ...core.batch import OneAtATime
from ...core.loop import Loop
from ...core.sampling import whole_number
from ...drafters.names import check_drafters
from ...errors import UserError
from ...models.cache_names import CACHE, cache_in
from ...models.huge_pages import use_huge_pages
from ...models.load import load_tokenizer
from ...models.modes import evaluating
from ...models.probe.checks import device_of
from ...models.runner.executors.compile import check_mode, compile_runner
from ...models.runner.positions import ENDLESS
from ...models.threads import THREADS, release
from ...models.verdicts import start
from ...policies.catalogue import Method
from ...specs import DrafterSpec, LoadOptions, PolicySpec, model_name, parse_drafters, parse_policy
from ...state.cached import AUTO, check_state, open_state
from ...state.file import StateFile
from .arguments import check, check_cache, check_call, check_given
from .call import Call
from .prompted import Inputs, PromptedTarget
from .target import HostTarget, Prompt, fill, read_prompt
from .together import Steps


def transformers_generate(
    *,
    drafters: Sequence[Any] = ("ngram", "suffix"),
    policy: str | Callable[[Sequence[str]], Method] = "",
    tokenizer: Any = None,
    seed: int = 0,
    compile: str = "auto",
    exact: bool = False,
    state: str | PathLike[str] | None = AUTO,
) -> Callable[..., Any]:
    """A decoding method for Transformers' `generate`: the model's own text, drafted as the policy decides.

    Drafters are names or loaded models. The model is used unchanged. Reuse the returned function for many
    calls: it keeps what the policy learned, and the models that it was called on. `compile`, `exact` and
    `state` are those of `Decoder.from_pretrained`. `tokenizer` is the model's, or a name; it is only needed
    to check a drafter given by name, and by default it is loaded by the model's own name. Sampling follows
    `torch.manual_seed`. Calls from several threads run one after another.

    Raises:
        UserError: an unknown name or option, an argument of `generate` that is not supported, or a model that
            is rejected (docs/reference/arguments.md).
    """
    specs = parse_drafters(drafters)
    check_drafters(specs)
    chosen = parse_policy(policy) if policy else None
    check_state(state)
    host = Host(specs, chosen, tokenizer, whole_number("seed", seed), check_mode(compile), state, exact=exact)
    return host.decode


class Hosted(NamedTuple):
    """The loop of one model, and the file for what its policy learns, if that is kept."""

    loop: Loop
    target: HostTarget | PromptedTarget
    file: StateFile | None


class Host:
    """The loop of each model used so far, for one caller at a time.

    Policy, drafters and KV cache are shared by all calls, so a call holds the lock from its first step to its
    last; other threads wait. A call from inside another one would deadlock and is rejected.
    """

    def __init__(
        self,
        drafters: Sequence[DrafterSpec],
        policy: PolicySpec | None,
        tokenizer: Any,
        seed: int,
        compile: str,
        state: str | PathLike[str] | None,
        *,
        exact: bool,
    ) -> None:
        self.drafters, self.policy, self.tokenizer, self.seed = drafters, policy, tokenizer, seed
        self.compile, self.state, self.exact = compile, state, exact
        self.hosted: dict[tuple[int, bool], Hosted] = {}
        self.tokenizers: dict[str, Any] = {}
        self.lock = OneAtATime()
        self.caller = 0  # the thread that holds the lock

    def decode(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        streamer: Any = None,
        synced_gpus: bool | None = None,
        stop_strings: Any = None,
        inputs_tensor: Tensor | None = None,
        **model_kwargs: Any,
    ) -> Any:
        """The decoding method that `generate` calls, with its arguments by these names."""
        streamer = check_call(model, streamer, synced_gpus)
        check(generation_config, model)
        check_given(cache_in(model_kwargs))
        criteria = self.ends(stopping_criteria, stop_strings, model)
        steps = Steps(input_ids, criteria, generation_config, streamer)
        with self.turn(), self.evaluating(model):
            prompt: Any = self.read(model, input_ids, generation_config, model_kwargs)
            loop, target, file = self.of(model, prompted=prompt is None)
            if isinstance(target, PromptedTarget):
                encoded = inputs_tensor if model.config.is_encoder_decoder else None
                prompt = Inputs(input_ids, generation_config, model_kwargs, encoded)
                target.begin(prompt, steps, loop.pool.drafters.values())
            else:
                target.chunk = generation_config.prefill_chunk_size or target.usual
            try:
                check_cache(generation_config, model, target)
                Call(loop, target, generation_config, logits_processor, criteria, steps, prompt).run()
                cache = target.end() if isinstance(target, PromptedTarget) else prompt.cache
            finally:
                if isinstance(target, PromptedTarget):
                    target.forget()
            if file is not None:
                file.keep()
            returned = bool(generation_config.return_dict_in_generate)
            used = returned or getattr(cache, "_is_user_defined", False)
            if isinstance(target, HostTarget) and cache is not None and used:
                fill(model, prompt, steps.ids, model_kwargs)
        if streamer is not None:
            streamer.end()
        return _output(model, steps, cache) if returned else steps.ids

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the lock within the block."""
        if self.caller == get_ident():
            raise UserError(
                "transformers_generate: called from inside its own call, by a processor, a criterion or a "
                "streamer: make a second one for that"
            )
        with self.lock:
            self.caller = get_ident()
            try:
                THREADS.adapt()
                yield
            finally:
                self.caller = 0
                release()  # the next caller may be another thread

    def evaluating(self, model: Any) -> AbstractContextManager[None]:
        """The model and the drafters in evaluation mode: no dropout.

        Raises:
            UserError: an encoder has already read its input in training mode.
        """
        if model.training and model.config.is_encoder_decoder:
            raise UserError(
                f"{type(model).__name__} is in training mode, and its encoder has read with dropout: "
                "call model.eval() before"
            )
        return evaluating(model, *(d.loaded for d in self.drafters if isinstance(d.loaded, Module)))

    def read(
        self, model: Any, input_ids: Tensor, config: GenerationConfig, model_kwargs: Mapping[str, Any]
    ) -> Prompt | None:
        """The rows of a call; None if only the model knows how to read them."""
        prompt = read_prompt(model, input_ids, config, model_kwargs)
        if prompt is None or not prompt.padded:
            return prompt
        target: Any = self.of(model, prompted=False).target
        # Rotary frequencies that change with the length are those of the longest row for all rows.
        longest = (config.max_length or ENDLESS) + prompt.virtual
        crossing = target.runner.rope.last(min(map(len, prompt.texts))) < longest
        return prompt if target.neutral and not crossing else None

    def of(self, model: Any, *, prompted: bool) -> Hosted:
        """The loop of a model, for a target that is `prompted` if the model reads its prompts itself.

        It is created again if the model has moved to another device.
        """
        key = id(model), prompted
        hosted = self.hosted.get(key)
        if hosted is not None:
            at: Any = hosted.target if prompted else hosted.target.runner  # type: ignore[union-attr]
            here = (device_of(model), model.dtype)
            if at.model is model and (at.device, at.dtype) == here:
                return hosted
        self.hosted[key] = self._make(model, PromptedTarget if prompted else HostTarget)
        return self.hosted[key]

    def ends(self, criteria: StoppingCriteriaList, strings: Any, model: Any) -> StoppingCriteriaList:
        """The stopping criteria, with one for the stop strings; the user's own are kept.

        Transformers (5.23) does not pass on the tokenizer that it needs for them, so the strings are an
        argument here.
        """
        if strings is None or any(type(c) is StopStringCriteria for c in criteria):
            return criteria
        tokenizer = self._tokenizer(model)
        if tokenizer is None:
            raise UserError(f"stop_strings={strings!r}: give transformers_generate the model's tokenizer")
        return StoppingCriteriaList([*criteria, StopStringCriteria(known_tokenizer(tokenizer), strings)])

    def _tokenizer(self, model: Any) -> Any:
        """The model's tokenizer: the given one, or the one loaded by the model's name; None if not found."""
        if isinstance(self.tokenizer, str):
            self.tokenizer = load_tokenizer(self.tokenizer)
        if self.tokenizer is not None:
            return self.tokenizer
        name = model_name(model)
        if name not in self.tokenizers:
            self.tokenizers[name] = None
            with suppress(UserError):
                self.tokenizers[name] = load_tokenizer(name)
        return self.tokenizers[name]

    def _make(self, model: Any, kind: type[HostTarget | PromptedTarget]) -> Hosted:
        target: Any = kind(model)
        named = self.policy is not None or any(d.loaded is None for d in self.drafters)
        tokenizer = self._tokenizer(model) if named else None
        load = LoadOptions(device=target.device, compile=self.compile)
        drafters = [replace(spec, load=load) for spec in self.drafters]
        chains_only = "exact=True" if self.exact else ""
        use_huge_pages(model)
        with start():
            parts = assemble(
                drafters, self.policy, target, tokenizer, model_name(model), chains_only=chains_only
            )
        if kind is HostTarget or self.exact:
            compile_runner(target, self.compile, exact=self.exact)
        policy, recorder = parts.method.policy, parts.method.recorder
        loop = Loop(target, complete(parts.team, parts.method), policy, recorder, seed=self.seed)
        names = {"name": parts.policy.text, "target": model, "drafters": parts.drafters}
        file = open_state(self.state, policy, **names, load=(load, kind, model.dtype))
        if file is not None:
            file.load()
            finalize(loop, file.close)
        return Hosted(loop, target, file)


def _output(model: Any, steps: Steps, cache: Any) -> Any:
    kind = GenerateEncoderDecoderOutput if model.config.is_encoder_decoder else GenerateDecoderOnlyOutput
    kept: dict[str, Any] = {"scores": steps.scores, "logits": steps.logits, CACHE: cache}
    return kind(sequences=cast("torch.LongTensor", steps.ids), **kept)
