"""The main entry point: models by name in, text out, once or turn by turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from os import PathLike
from random import Random, SystemRandom
from typing import Any
from weakref import finalize

from ..core.loop import Loop
from ..core.request import Request
from ..core.roles import Drafter, Target
from ..core.sampling import Sampling, whole_number
from ..errors import GenerationError, UserError, pluralize
from ..models.threads import THREADS, release
from ..policies.catalogue import Method, default, method
from ..specs import (
    DrafterSpec,
    LoadOptions,
    ModelSpec,
    PolicySpec,
    parse_drafters,
    parse_policy,
    parse_target,
)
from ..state.cached import AUTO, check_state, open_state
from ..state.file import StateFile
from .output import Output, Writer
from .prompts import Prompt, encode, render_messages
from .settings import own_processors, own_settings, reusable
from .text import Piece, Stops, StopStrings, decode, earliest, stop_strings


class Decoder:
    """Generates a target model's own text faster, with several drafters and a policy that chooses among them.

    Greedy text is token-identical to the target's own; sampled text has the target's exact distribution. With
    a `state` the policy starts from what it learned before, and saves after finished texts; `state.save()`
    saves at any time. Any thread may call: calls take turns, one round each. Each call decodes
    only its own texts, so a stream that is not read makes no progress. `last` is the newest text of any
    thread.
    """

    def __init__(
        self,
        target: Target,
        drafters: Mapping[str, Drafter],
        method: Method,
        tokenizer: Any,
        *,
        eos: Iterable[int] = (),
        seed: int | None = None,
        state: StateFile | None = None,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        self.tokenizer, self.eos, self.defaults = tokenizer, frozenset(eos), dict(defaults or {})
        self.seed = _fresh(SystemRandom()) if seed is None else whole_number("seed", seed)
        self.seeds = Random(f"texts {self.seed}")
        self.loop = Loop(target, drafters, method.policy, method.recorder, seed=self.seed)
        self.last = Output()
        self.state = state
        if state is not None:
            state.load()
            finalize(self, state.close)

    @classmethod
    def from_pretrained(
        cls,
        target: Any,
        *,
        drafters: str | Sequence[Any] = (),
        policy: str | Callable[[Sequence[str]], Method] = "",
        tokenizer: Any = None,
        dtype: Any = "auto",
        device: Any = "auto",
        device_map: Any = None,
        trust_remote_code: bool = False,
        pack: bool | str = "auto",
        compile: str = "auto",
        exact: bool = False,
        probe: bool = True,
        seed: int | None = None,
        state: str | PathLike[str] | None = AUTO,
        prefix_cache: float = 0,
    ) -> Decoder:
        """Load a target, its tokenizer and its drafters; models may be names or loaded objects.

        A model is a Hugging Face id, a local folder, `zoo:NAME` or a GGUF file (`gguf:PATH?context=4096`, or
        a path that ends in .gguf), which llama.cpp runs with its own tokenizer and chat template. A drafter
        is a model, or `none`, `ngram`, `suffix`, `retrieval:PATH`, with options as in `ngram?min=2&max=4`;
        one string may list several, separated by commas. `policy` is a name, or a function from the drafters'
        names to a `Method`; it defaults to `auto`, or `none` without drafters. `pack` stores the linear
        weights of models loaded here in a layout for fast CPU passes: "auto" if it is faster on this machine,
        True wherever possible (see `packed`); models given as objects are never changed. `compile` runs the
        models' passes as compiled graphs on a CPU (see `draftwise.models.compiled`): "auto" in the background
        where a run is long enough, and from the start once a graph is on disk; "kept" only then; "on" before
        anything else; "off" never. With `exact` the target's text depends on no draft and no other text, bit
        for bit, in half precision too. `probe` reads a few made-up tokens to find out how the models can be
        run (see `draftwise.models.probe`). `state` is a file for what the policy learns; a file for other
        models or arms is left unchanged, with a warning; "auto" is one in the user's cache, for the policy
        `auto` alone, and "off" or None keeps nothing. `seed` is for the policy's choices and for texts
        without a seed; a new one by default. `prefix_cache` is the memory in MiB for what was read of texts
        that have ended. The target's own settings apply unless a call overrides them.

        Raises:
            UserError: an unknown name or option, models that do not fit together, or a `state` file that
                cannot be read or written.
        """
        load = LoadOptions(
            dtype=dtype,
            device=device,
            device_map=device_map,
            trust_remote_code=trust_remote_code,
            pack=pack,
            compile=compile,
            exact=exact,
            probe=probe,
        )
        return cls.from_specs(
            parse_target(target, load),
            parse_drafters(drafters, load),
            parse_policy(policy) if policy else None,
            tokenizer=tokenizer,
            seed=seed,
            state=state,
            prefix_cache=prefix_cache,
        )

    @classmethod
    def from_specs(
        cls,
        target: ModelSpec,
        drafters: Sequence[DrafterSpec],
        policy: PolicySpec | None = None,
        *,
        tokenizer: Any = None,
        seed: int | None = None,
        state: str | PathLike[str] | None = None,
        prefix_cache: float = 0,
    ) -> Decoder:
        """Load what was parsed before; errors are those of `from_pretrained`."""
        from ..build import assemble, build_target, compile_target, complete, eos_ids
        from ..drafters.names import check_drafters
        from ..models.runner.prefix_cache import keep_prefixes
        from ..models.verdicts import start

        check_drafters(drafters)
        policy = policy or parse_policy(default(spec.text for spec in drafters))
        method(policy, [spec.text for spec in drafters])  # its options are refused before minutes of loading
        check_state(state)
        THREADS.adapt()
        with start():
            built, model, tokenizer = build_target(target, tokenizer)
            parts = assemble(drafters, policy, built, tokenizer, target.text, chains_only=target.chains_only)
            compile_target(target, built)
        keep_prefixes([built, *parts.team.values()], prefix_cache)
        names: dict[str, Any] = {"name": parts.policy.text, "target": target, "drafters": parts.drafters}
        file = open_state(state, parts.method.policy, **names, load=target.load)
        everyone, ends = complete(parts.team, parts.method), eos_ids(model, tokenizer)
        own = own_settings(getattr(model, "generation_config", None), level=4)
        release()  # another thread may run what this one has loaded
        return cls(built, everyone, parts.method, tokenizer, eos=ends, seed=seed, state=file, defaults=own)

    def __repr__(self) -> str:
        return f"Decoder({self.loop!r})"

    @property
    def packed(self) -> dict[str, str]:
        """How many linear layers of the target and of each drafter have packed weights (`pack`)."""
        from ..models.weights.packed import layouts

        return layouts({"target": self.loop.target, **self.loop.pool.drafters})

    @property
    def compiled(self) -> dict[str, str]:
        """How the passes of the target and of each model drafter are run: eager or compiled (`compile`)."""
        from ..models.runner.executors.compile import describe_passes

        return describe_passes({"target": self.loop.target, **self.loop.pool.drafters})

    # -- text in, text out --------------------------------------------------------------------------

    def generate(
        self, prompt: Prompt, *, n: int = 1, chat: bool = True, stop: Stops = (), **sampling: Any
    ) -> Output:
        """Write one text, or `n` samples of it in one batch; `sampling` takes the fields of `Sampling`.

        A prompt is text, token ids, or messages with `role` and `content`. With `chat`, text is formatted
        with the tokenizer's chat template, if it has one.

        Raises:
            UserError: bad input.
            GenerationError: some of several samples failed; it has the others.
            Exception: the error of a processor or criterion, if there is only one sample.
        """
        if whole_number("n", n) < 1:
            raise UserError(f"n={n}: give 1 or more samples")
        ids = self.encode(prompt, chat=chat)
        stop, sampling = stop_strings(stop), reusable(sampling)
        if n > 1 and sampling.get("seed") is None:
            sampling["seed"] = _fresh(self.seeds)  # each sample adds its index
        settings = [self.settings(stop, len(ids), i, alone=n == 1, **sampling) for i in range(n)]
        outputs = self._run([(ids, s) for s in settings], n, stop)
        self.last = output = replace(outputs[0], samples=outputs)
        return output  # `last` may be another thread's by now

    def generate_many(
        self,
        prompts: Iterable[Prompt],
        *,
        batch: int = 8,
        chat: bool = True,
        stop: Stops = (),
        **sampling: Any,
    ) -> list[Output]:
        """Write one text per prompt, `batch` at a time.

        The next prompt joins as soon as a text has ended. Every text has its own processors: copies of those
        given, or the results of calling those that are functions without arguments.

        Raises:
            UserError: bad input, found before anything is decoded.
            GenerationError: some of the texts failed; it has the others.
        """
        if whole_number("batch", batch) < 1:
            raise UserError(f"batch={batch}: give a batch size of 1 or more")
        if isinstance(prompts, str) or not isinstance(prompts, Iterable):
            raise UserError("generate_many takes several prompts: put the text in a list")
        encoded = [self.encode(p, chat=chat) for p in prompts]
        alone = len(encoded) == 1
        stop, sampling = stop_strings(stop), reusable(sampling)
        jobs = [(ids, self.settings(stop, len(ids), alone=alone, **sampling)) for ids in encoded]
        return self._run(jobs, batch, stop)

    def stream(
        self, prompt: Prompt, *, chat: bool = True, stop: Stops = (), **sampling: Any
    ) -> Generator[Piece, None, None]:
        """Write one text piece by piece; leaving the loop early stops the decoding.

        `last` then holds the text written so far.
        """
        ids, stop = self.encode(prompt, chat=chat), stop_strings(stop)
        request = self.loop.add(ids, self.settings(stop, len(ids), 0, **sampling))
        yield from self.follow(request, Writer(self.tokenizer, stop, request.sampling.seed))

    def chat(self) -> Chat:
        """A conversation that keeps its KV cache from turn to turn."""
        return Chat(self)

    # -- parts of the above, for chats and hosts ----------------------------------------------------

    def encode(self, prompt: Prompt, *, chat: bool = True) -> list[int]:
        """Token ids of a prompt; a `UserError` says why it has none."""
        return encode(self.tokenizer, prompt, vocab_size=self.loop.target.vocab_size, chat=chat)

    def follow(self, request: Request, writer: Writer) -> Generator[Piece, None, None]:
        """Run an open request to its end, piece by piece; closing the generator closes the request.

        It ends early if the request is closed elsewhere. The writer collects the rounds.
        """
        try:
            while not request.done and request.id in self.loop.open:
                for round in self.loop.step([request]):
                    writer.add(round)
                yield from writer.fresh()
        finally:
            if request.id in self.loop.open:  # maybe done, if an interrupt broke off its last round
                self.loop.close(request)
            self.last = output = writer.output()
            output.samples = [output]
            self._keep()
            release()
        yield from writer.fresh()
        if writer.error is not None:
            raise writer.error

    def _run(
        self, jobs: Sequence[tuple[list[int], Sampling]], batch: int, stop: tuple[str, ...]
    ) -> list[Output]:
        """Decode all jobs, at most `batch` at a time; returns outputs in the order of the jobs."""
        for ids, _ in jobs:
            self.loop.check(len(ids))
        writers = dict[int, Writer]()
        waiting, open_ = deque(enumerate(jobs)), dict[int, tuple[Request, Writer]]()
        try:
            while waiting or open_:
                while waiting and len(open_) < batch:
                    place, job = waiting.popleft()
                    request = self.loop.add(*job)
                    writers[place] = Writer(self.tokenizer, stop, job[1].seed)
                    open_[request.id] = (request, writers[place])
                for round in self.loop.step([request for request, _ in open_.values()]):
                    open_[round.request][1].add(round)
                    if round.done:
                        self._keep()
                # What is gone has ended, or was closed elsewhere.
                open_ = {key: text for key, text in open_.items() if key in self.loop.open}
        finally:
            for request, _ in open_.values():
                self.loop.close(request)
            release()
        outputs = [writers[place].output() for place in range(len(jobs))]
        errors = {place: w.error for place, w in sorted(writers.items()) if w.error is not None}
        if errors and len(jobs) == 1:
            raise errors[0]
        if errors:
            raise GenerationError(outputs, errors)
        return outputs

    def _keep(self) -> None:
        if self.state is not None:
            with self.loop.lock:
                self.loop.catch_up()
                self.state.keep()

    def settings(
        self,
        stop: tuple[str, ...],
        prompt_length: int,
        sample: int = 0,
        *,
        alone: bool = True,
        **sampling: Any,
    ) -> Sampling:
        """The settings of one request: the call's, the model's own, end-of-text tokens and stop strings.

        Processors are copied unless the text is `alone`. A sampled text always gets a seed.
        """
        try:
            settings = Sampling(**{"eos": self.eos, **self.defaults, **sampling})
        except TypeError as error:
            known = {f.name for f in fields(Sampling)}
            wrong = ", ".join(sorted(set(sampling) - known)) or str(error)
            raise UserError(f"unknown setting {wrong}: choose from {', '.join(sorted(known))}") from None
        if (most := max(settings.eos - self.eos, default=0)) >= self.loop.target.vocab_size:
            raise UserError(f"eos={most}: the vocabulary has {self.loop.target.vocab_size} tokens")
        seed = None
        if not settings.greedy:
            seed = (_fresh(self.seeds) if settings.seed is None else settings.seed) + sample
        settings = replace(settings, seed=seed)
        if settings.processors:
            settings = replace(settings, processors=own_processors(settings.processors, alone=alone))
        if stop:
            strings = StopStrings(self.tokenizer, stop, prompt_length)
            settings = replace(settings, ends=earliest(settings.ends, strings) if settings.ends else strings)
        return settings


class Chat:
    """A conversation with a decoder. `messages` is the history, `last` the newest answer.

    Turns are joined at the level of tokens, so nothing is prefilled twice. If the chat template renders an
    earlier turn differently from what was generated, for example without its reasoning, the whole
    conversation is prefilled again. An answer that is still being read ends with the next message; what was
    written of it stays in the history.
    """

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.messages: list[dict[str, str]] = []
        self.last = Output()
        self._request: Request | None = None
        self._prompt = ""  # the text that the request's prompt was made from
        self._open: Writer | None = None  # of the answer that is being read

    def __repr__(self) -> str:
        return f"Chat({pluralize(len(self.messages), 'message')}, {self.decoder!r})"

    def send(self, text: str, *, stop: Stops = (), **sampling: Any) -> Generator[Piece, None, None]:
        """Send a message and receive the answer piece by piece."""
        if not isinstance(text, str) or not text.strip():
            raise UserError("the message is empty: give some text")
        self._break_off()
        decoder = self.decoder
        stop, sampling = stop_strings(stop), reusable(sampling)
        messages = [*self.messages, {"role": "user", "content": text}]
        # Invalid input raises here, and leaves the conversation unchanged.
        ids, prompt = decoder.encode(messages), render_messages(decoder.tokenizer, messages)
        more = self._continuation(ids, prompt)
        if more is None or self._request is None:
            request = decoder.loop.add(ids, decoder.settings(stop, len(ids), **sampling), keep=True)
            self._drop()
        else:
            request = self._request
            settings = decoder.settings(stop, len(request.tokens) + len(more), **sampling)
            decoder.loop.extend(request, more, settings)
        self.messages, self._request, self._prompt = messages, request, prompt
        self._open = writer = Writer(decoder.tokenizer, stop, request.sampling.seed)
        try:
            yield from decoder.follow(request, writer)
        finally:
            if self._open is writer:  # else the conversation continued without it, or was closed
                self._open, self.last = None, writer.output()  # `decoder.last` may be another's by now
                self.messages.append({"role": "assistant", "content": self.last.text})

    def close(self) -> None:
        """End the conversation, with an answer that is still being read, and free its KV cache."""
        self._open = None
        self._drop()
        self.messages.clear()

    def _break_off(self) -> None:
        """End an answer that is still being read."""
        writer, self._open = self._open, None
        if writer is not None:
            self._drop()
            self.messages.append({"role": "assistant", "content": writer.output().text})

    def _drop(self) -> None:
        if self._request is not None:
            self.decoder.loop.close(self._request)
            self._request = None

    def _continuation(self, ids: Sequence[int], prompt: str) -> list[int] | None:
        """Return the tokens between the last answer and the next one; None if all is to be prefilled again.

        `ids` are the tokens of the whole conversation, `prompt` is its text.
        """
        request, decoder = self._request, self.decoder
        if request is None or request.id not in decoder.loop.parked:  # it failed, or was closed
            return None
        written = request.tokens
        if ids[: len(written)] == written:
            return list(ids[len(written) :]) or None
        # The template may tokenize the same text differently from what the model wrote.
        end = written[-1:] if written[-1] in decoder.eos else []
        answer = written[request.prompt_length : len(written) - len(end)]
        before = self._prompt + decode(decoder.tokenizer, answer, special=True)
        if not prompt.startswith(before):
            return None
        rest = list(decoder.tokenizer(prompt[len(before) :], add_special_tokens=False)["input_ids"])
        return rest[len(end) :] or None if rest[: len(end)] == end else None


def _fresh(random: Random) -> int:
    """A seed short enough to type."""
    return random.getrandbits(32)
