"""Texts whose prompt the model itself reads, with images, sound, or the text of an encoder.

`generate` knows how a class reads its inputs: where pictures go, which positions follow them, what a decoder
sees of its encoder. So the model prepares each pass itself, by `prepare_inputs_for_generation`, from the
arguments that `generate` carries from step to step. Only the number of tokens differs: a pass reads a draft
as well, and what is rejected is taken back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from transformers import GenerationConfig
from transformers.cache_utils import Cache

from ...errors import UserError
from ..cache_names import cache_in
from ..limits import freed
from ..runner.recurrent import held_by
from .rewind import WAYS, Rewind, layers_of

MOST = 8  # tokens read again together with a draft; more are read in a pass of their own before it


class Prompted:
    """The rows of one call of `generate`; they have one length, so that a pass reads as many tokens of each.

    `kwargs` are the model inputs that `generate` prepared, and `ids` its rows, shape (rows, tokens), of the
    decoder where there is an encoder. `length` counts the committed tokens of a row, and `held` those in the
    cache. `said` are the logits after the prompt, shape (rows, vocabulary). `limits` are the layers whose
    limits of a token's step hold for the prompt alone.
    """

    def __init__(self, model: Any, ids: Tensor, config: GenerationConfig, kwargs: Mapping[str, Any]) -> None:
        self.model, self.length = model, ids.shape[1]
        self.decoder = bool(model.config.is_encoder_decoder)
        self.out = model._prefill(ids, config, dict(kwargs))
        self.said: Tensor = self.out.logits[:, -1]
        self.carried = {self.length: dict(kwargs), self.length + 1: self._later(dict(kwargs))}
        self.cache: Any = cache_in(self.carried[self.length + 1])
        held = held_by(self.cache) if isinstance(self.cache, Cache) else None
        if held is None:
            raise UserError(f"{type(model).__name__} keeps no cache of Transformers' own, which could rewind")
        self.held: int = held
        self.virtual = self.held - self.length  # tokens that are in the cache alone, such as a tuned prefix
        self.rewind: Rewind = WAYS["crop"](self.cache)
        self.limits: dict[Any, tuple[float, float]] = {}

    @property
    def cuts(self) -> bool:
        """Whether tokens are taken back without reading others again."""
        return isinstance(self.rewind, WAYS["crop"])

    @property
    def names(self) -> list[str]:
        """The names of the model's inputs."""
        return sorted(name for name, value in self.carried[self.length + 1].items() if value is not None)

    def read(self, ids: Tensor, drafted: int) -> Tensor:
        """Read committed rows and a draft after each, shape (rows, length + drafted).

        Returns the logits of the token before the drafts, and of each drafted one, shape (rows, 1 + drafted,
        vocabulary).
        """
        self.length = ids.shape[1] - drafted
        if self.virtual + self.length - 1 - self.held > MOST:
            self._pass(ids[:, : self.length - 1], 0)
        return self._pass(ids, drafted)

    def keep(self, length: int) -> None:
        """Take back all tokens but the first `length` - 1 of each row; the last is read in the next pass."""
        self.length = length
        self.held = self.rewind.cut(self.held, min(self.held, self.virtual + length - 1))
        self.carried = {n: kwargs for n, kwargs in self.carried.items() if n >= length - 1}

    def complete(self, ids: Tensor) -> None:
        """Read all tokens of the rows but the last, so that the cache is as plain decoding leaves it."""
        if self.held < self.virtual + ids.shape[1] - 1:
            self._pass(ids[:, :-1], 0)
        for layer in layers_of(self.cache):
            if hasattr(layer, "record_past"):
                layer.record_past = False

    def _pass(self, ids: Tensor, drafted: int) -> Tensor:
        new = self.virtual + ids.shape[1] - self.held
        fed = self.model.prepare_inputs_for_generation(
            ids, next_sequence_length=new, **self._carried(ids.shape[1])
        )
        if fed.get("inputs_embeds") is not None:
            raise UserError(
                f"{type(self.model).__name__} is given a prompt again in every step: use it as it is"
            )
        fed["decoder_input_ids" if self.decoder else "input_ids"] = ids[:, -new:].to(self.model.device)
        if "logits_to_keep" in fed:
            fed["logits_to_keep"] = 1 + drafted
        self.rewind.before(self.held, guesses=drafted > 0)
        with freed(self.limits, [0], new, self.said):
            logits: Tensor = self.model(**fed, return_dict=True).logits
        self.held += new
        return logits[:, -1 - drafted :]

    def _carried(self, length: int) -> dict[str, Any]:
        """The model inputs for rows of this length, as `generate` carries them, one token after the other."""
        known = max(n for n in self.carried if n <= length)
        while known < length:
            self.carried[known + 1] = self._later(dict(self.carried[known]))
            known += 1
        return dict(self.carried[length])

    def _later(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        said: dict[str, Any] = self.model._update_model_kwargs_for_generation(
            self.out, kwargs, is_encoder_decoder=self.decoder
        )
        return said
