"""A `generate` call whose prompt the model reads itself: with images, sound, embeddings, or an encoder."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from logging import getLogger
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig

from ...core.drafts import Draft, Verdict
from ...core.request import Request
from ...core.roles import Scores
from ...drafters.neural.prompted import PromptedDrafter
from ...errors import UserError, one_line
from ...models.cache_names import NAMES, cache_in, name_for
from ...models.distributions import Chain, choices, on_host
from ...models.probe.checks import device_of
from ...models.probe.readings import LONGEST, NEW, PROMPT, Readings, made_up, with_settings
from ...models.probe.small import miniature
from ...models.prompted import Prompted, Trials, check_way
from ...models.runner.positions import ENDLESS, Rope, pretended
from ...models.runner.recurrent import in_modules, kinds, put
from ...models.runner.traits import ask
from ...models.stages import quiet
from ...targets.scores import GreedyScores, SampledScores
from .together import Steps, Together

LOG = getLogger(__name__)
# Model inputs other than the tokens that are read as such.
FED = {"input_ids", "attention_mask", "position_ids", "use_cache", "logits_to_keep", *NAMES}


@dataclass(slots=True)
class Inputs:
    """The inputs that `generate` prepared: the rows, shape (rows, tokens), and the model's arguments.

    `encoded` is the input of the encoder, if there is one, and `vocab_size` that of the decoder.
    """

    ids: Tensor
    config: GenerationConfig
    kwargs: Mapping[str, Any]
    encoded: Tensor | None = None
    vocab_size: int = ENDLESS

    @property
    def texts(self) -> list[list[int]]:
        """The tokens that drafters may read: those of each row, the encoder's before the decoder's.

        Numbers that are no tokens of the vocabulary, such as places of images, are 0.
        """
        parts = [self.ids]
        if self.encoded is not None and self.encoded.dim() == 2 and not self.encoded.is_floating_point():
            times = len(self.ids) // max(len(self.encoded), 1)
            parts.insert(0, self.encoded.repeat_interleave(times, dim=0))
        rows = torch.cat([part.to(self.ids.device) for part in parts], dim=1)
        rows = rows.where((rows >= 0) & (rows < self.vocab_size), 0)
        mask = self.kwargs.get("attention_mask")
        seen = torch.ones_like(rows, dtype=torch.bool)
        if mask is not None and mask.dim() == 2 and mask.shape[1] <= rows.shape[1]:
            seen[:, : mask.shape[1]] = mask != 0
        return [row[own].tolist() or [0] for row, own in zip(rows, seen, strict=True)]

    @property
    def padded(self) -> bool:
        """True if the inputs are tokens alone, some of them masked."""
        mask = self.kwargs.get("attention_mask")
        more = any(value is not None and name not in FED for name, value in self.kwargs.items())
        return self.encoded is None and not more and mask is not None and not bool((mask != 0).all())

    def lengths(self, new: int) -> tuple[int, int]:
        """The least and the most that the length of the longest row may be taken for after `new` tokens:
        with or without padding."""
        mask, places = self.kwargs["attention_mask"], self.kwargs.get("position_ids")
        known = [mask.shape[1], int((mask != 0).sum(1).max())]
        known += [] if places is None else [int(places.max()) + 1]
        return min(known) + new, max(known) + new


def drops_cache(model: Any, length: int) -> bool:
    """Return whether the model's own decoding drops its cache after this number of tokens."""
    ids = torch.zeros((1, length + 1), dtype=torch.long, device=device_of(model))
    prepare = model.prepare_inputs_for_generation
    given = {"attention_mask": torch.ones_like(ids), name_for(prepare): pretended(length)}
    return cache_in(prepare(ids, next_sequence_length=1, use_cache=True, **given)) is None


class PromptedTarget:
    """The model that `generate` was called on, for one call at a time: all rows are read in one pass.

    Rows of a batch have one length, so they take their steps together (see `together`).
    """

    regimes = None
    inputs: Inputs  # of the call that has begun, as are its steps
    steps: Steps

    def __init__(self, model: Any) -> None:
        self.model, self.encodes = model, bool(model.config.is_encoder_decoder)
        text = model.config.get_text_config(decoder=True)
        # A quantised head has no weight of that shape.
        self.vocab_size = int(getattr(model.get_output_embeddings(), "out_features", text.vocab_size))
        self.max_length = self.window = ENDLESS
        self.device, self.dtype = device_of(model), model.dtype
        self.trials = Trials(model)
        self.ways: dict[bool, Prompted] = {}  # for batches or not, what was found out without padding
        self.rope = Rope()
        self.shapes: dict[int, Chain] = {}
        self.together: Together | None = None
        self.rows: Prompted | None = None
        self.order: dict[int, int] = {}  # by request, its row
        self.latest: Tensor | None = None  # logits of the latest pass, shape (rows, tokens, vocabulary)
        self.since = 0  # the step of the first of them

    def begin(self, inputs: Inputs, steps: Steps, drafters: Iterable[Any]) -> None:
        """Take the inputs of a call; the model reads them in the first pass."""
        self.inputs, self.steps, self.rows, self.latest = inputs, steps, None, None
        inputs.vocab_size = self.vocab_size
        self.rope = self._borders if inputs.padded else Rope()
        self.order.clear()
        for drafter in drafters:
            if isinstance(drafter, PromptedDrafter):
                drafter.begin(inputs.encoded, inputs.kwargs, steps)

    @cached_property
    def _borders(self) -> Rope:
        """Where rotary frequencies change; `anew` if the model's own decoding then drops its cache."""
        rope, text = ask(self.model).rope, self.model.config.get_text_config(decoder=True)
        threshold = int(getattr(text, "original_max_position_embeddings", None) or 0)
        if threshold and drops_cache(self.model, threshold):
            return replace(rope, borders=tuple(sorted({*rope.borders, threshold})), anew=True)
        return rope

    def end(self) -> Any:
        """Return the cache of the call, which then holds what plain decoding leaves in it."""
        if self.rows is None:
            return None
        self.rows.complete(self.steps.ids)
        return self.rows.cache

    def forget(self) -> None:
        """Forget the call, whatever ended it."""
        self.rows = self.latest = None
        del self.inputs, self.steps

    def open(self, request: Request) -> None:
        """The next row is that of this request."""
        self.order[request.id] = len(self.order)

    def reach(self, request: Request) -> int:
        """The model reads its prompt without a draft, and no draft across a change of rotary frequencies."""
        if self.rows is None or not self.rope.borders:
            return ENDLESS if self.rows is not None else 0
        least, most = self.inputs.lengths(self.steps.count)
        return max(self.rope.last(least) - most, 0)

    def padding(self, steps: Steps, limit: int, prompt: Any) -> PromptedTarget:
        """Finished rows continue in the same passes."""
        return self

    def read_ahead(self, row: int, n: int) -> None:
        """Finished rows are read in the next pass."""

    def logits(self, row: int) -> Tensor:
        """The logits of a finished row's next step, a float32 copy of shape (vocabulary,)."""
        assert self.latest is not None
        return self.latest[row, self.steps.count - self.since].to(torch.float32, copy=True)

    def verify(self, batch: Sequence[tuple[Request, Draft]]) -> list[Scores]:
        """One pass over the last token and the draft of every row; the first reads the model's inputs."""
        if self.together is None:
            return self._verify(batch)
        self.together.prepare(batch)
        with self.together.guard():
            return self._verify(batch)

    @torch.no_grad()
    def _verify(self, batch: Sequence[tuple[Request, Draft]]) -> list[Scores]:
        if any(not draft.is_chain for _, draft in batch):
            raise UserError(
                f"{type(self.model).__name__} cannot read a tree of drafted tokens after inputs other than "
                "text, or padding between tokens: use a policy that drafts chains"
            )
        self.since = self.steps.count
        if self.rows is None:
            self.rows = self._start(self.steps.ids)
            self.latest = self.rows.prompt_logits[:, None]
        else:
            if self.rope.borders:
                self._check_border()
            width = max(len(draft.tokens) for _, draft in batch)
            self.latest = self.rows.read(self._drafted(batch, width), width)
        rows = [self.latest[self.order[r.id], : 1 + len(d.tokens)] for r, d in batch]
        if self.together is not None:
            return list(self.together.scores(batch, rows))
        return [self._score(r, d, own) for (r, d), own in zip(batch, rows, strict=True)]

    def _start(self, ids: Tensor) -> Prompted:
        """The rows after their first pass, and a way to take back what follows them."""
        inputs = self.inputs
        try:
            made = Prompted(self.model, ids, inputs.config, inputs.kwargs)
            if not inputs.padded:
                with self._explain_errors():
                    self.trials.settle(made, ids)
                return made
            found = self._find_way(len(ids) > 1)
        except UserError as error:
            if not inputs.padded:
                raise
            raise UserError(f"{error}; without padding in attention_mask it may work") from error
        made.rewind, made.limits = type(found.rewind)(made.cache), found.limits
        return made

    def _find_way(self, batch: bool) -> Prompted:
        """Rows without padding, and how what follows them is taken back: padding would hide differences.

        That way has to be exact after padding too, also in a small model of the class: its blocks of tokens
        are short enough that some hold padding alone.
        """
        if batch not in self.ways:
            with self._explain_errors():
                made = self._read_made_up(self.model, ids := made_up_rows(self.model, 1 + batch))
                way = self.trials.settle(made, ids)
                for model in (self.model, miniature(self.model)):
                    if model is not None:
                        ids, mask = pad_first(made_up_rows(model, 1 + batch))
                        check_way(self._read_made_up(model, ids, mask), ids, way)
            self.ways[batch] = made
        return self.ways[batch]

    def _read_made_up(self, model: Any, ids: Tensor, mask: Tensor | None = None) -> Prompted:
        settings: Any = GenerationConfig
        given: dict[str, Any] = {"attention_mask": torch.ones_like(ids) if mask is None else mask}
        if "position_ids" in inspect.signature(model.forward).parameters:
            given["position_ids"] = model._prepare_position_ids_for_generation(ids, given)
        return Prompted(model, ids, settings(), {**given, "use_cache": True})

    @contextmanager
    def _explain_errors(self) -> Iterator[None]:
        """A UserError in place of any other error of the model within the block."""
        try:
            yield
        except (UserError, torch.OutOfMemoryError):
            raise
        except Exception as trouble:  # a class that reads no tokens after a prompt may raise anything
            raise UserError(
                f"{type(self.model).__name__} cannot read several tokens after this prompt "
                f"({one_line(trouble)}): use it as it is"
            ) from trouble

    def _check_border(self) -> None:
        """Raise a UserError if the model's own decoding has now dropped its cache."""
        (_, start), (_, most) = self.inputs.lengths(0), self.inputs.lengths(self.steps.count)
        if self.rope.anew and self.rope.last(start) < most:
            raise UserError(
                f"{type(self.model).__name__} drops its cache after {most - 1} tokens, which draftwise "
                "cannot do with padding in attention_mask: leave it out, or give a smaller max_new_tokens"
            )

    def _drafted(self, batch: Sequence[tuple[Request, Draft]], width: int) -> Tensor:
        """The rows with their drafts, padded on the right, as finished rows are: shape (rows, tokens)."""
        ids = self.steps.ids
        drafts = [[self.steps.pad] * width for _ in range(len(ids))]
        for request, draft in batch:
            drafts[self.order[request.id]][: len(draft.tokens)] = draft.tokens
        tail = torch.tensor(drafts, dtype=ids.dtype, device=ids.device)
        return torch.cat([ids, tail.view(len(ids), width)], dim=1)

    def _score(self, request: Request, draft: Draft, logits: Tensor) -> Scores:
        shape = self.shapes[request.id]
        if request.sampling.greedy and not shape.historic and not shape.warpers:
            return GreedyScores(draft, logits, None if on_host(logits) else choices(logits[None])[0])
        return SampledScores(request, draft, logits, shape)

    @torch.no_grad()
    def commit(self, batch: Sequence[tuple[Request, Draft, Verdict]]) -> None:
        """Take back what was rejected."""
        assert self.rows is not None
        self.rows.keep(self.inputs.ids.shape[1] + max(request.position for request, _, _ in batch))

    def close(self, request: Request) -> None:
        """Forget the request's processors."""
        self.shapes.pop(request.id, None)


# -- padding that changes nothing in the rows after it --------------------------------------------------


def is_neutral(model: Any) -> bool:
    """Return whether `generate` decodes made-up tokens with padding before them from the logits without it.

    Where a class counts positions by slots, its states read padding, or its index counts it in blocks, they
    differ. A small model of the class has to agree, since blocks may be longer than a short text.
    """
    return _reads_alike(model) and ((small := miniature(model)) is None or _reads_alike(small))


def pads_before(n: int) -> int:
    """Padding before a prompt of `n` tokens: so much that the blocks where a token would be without it hold
    padding alone, and odd, so that groups of tokens become others."""
    return 2 * n + 3


def _reads_alike(model: Any) -> bool:
    try:
        readings = Readings(model)
        error = readings.error(_decode_padded(model, readings.tokens[: readings.n]), range(NEW))
    except torch.OutOfMemoryError:
        raise
    except Exception as trouble:  # a class without padding may raise anything
        LOG.info("%s does not read padding: %s", type(model).__name__, trouble)
        return False
    return error <= readings.tolerance


def pad_first(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Longer rows, of which the first is only as long as it was and has padding before it; their mask."""
    n = ids.shape[1]
    ids = ids.repeat(1, 4)[:, -n - pads_before(n) :]
    mask = torch.ones_like(ids)
    mask[0, : pads_before(n)] = 0
    return ids, mask


def made_up_rows(model: Any, rows: int) -> Tensor:
    """Made-up rows without padding, longer than a short window, shape (rows, tokens)."""
    text = model.config.get_text_config(decoder=True)
    limits = [getattr(text, name, None) or 0 for name in ("sliding_window", "attention_chunk_size")]
    n = PROMPT + max(limit for limit in (0, *limits) if limit <= LONGEST)
    tokens = made_up(rows * n, model.config)
    return torch.tensor(tokens, device=device_of(model)).view(rows, n)


@torch.inference_mode()
def _decode_padded(model: Any, prompt: list[int]) -> Tensor:
    """The logits that `generate` decodes from after padding and a prompt, shape (NEW, vocabulary)."""
    pads = pads_before(len(prompt))
    ids = torch.tensor([[*prompt[:1] * pads, *prompt]], device=device_of(model))
    mask = torch.ones_like(ids)
    mask[:, :pads] = 0
    settings: Any = GenerationConfig
    returned = {"output_logits": True, "return_dict_in_generate": True}
    config = settings(max_new_tokens=NEW, do_sample=False, **returned)
    _forget(model)
    with quiet():
        out = type(model).generate(
            with_settings(model, settings()), ids, attention_mask=mask, generation_config=config
        )
    _forget(model)
    return torch.cat(list(out.logits))


def _forget(model: Any) -> None:
    """Drop states that modules keep from one text to the next."""
    if kinds(model.config.get_text_config(decoder=True)):
        put(in_modules(model), None)
