"""One GGUF file as llama.cpp loads it."""

from __future__ import annotations

import ctypes
import weakref
from functools import cached_property
from logging import getLogger
from time import perf_counter

from ...errors import UserError
from .library import library, load, metadata
from .tokenizer import GgufTokenizer

LOG = getLogger(__name__)


class GgufModel:
    """The weights of one GGUF file.

    `vocab_size` is the number of token ids, `trained` the longest text that the model was trained for.
    `stateful` models keep one state for each text, which does not go back to every earlier token. Layers lie
    on the GPU if llama.cpp was built for one (`on_gpu`): the first `gpu_layers` of them, -1 for all.

    Raises:
        UserError: no such file, one that llama.cpp cannot read, or no causal language model.
    """

    generation_config = None

    def __init__(self, path: str, *, gpu_layers: int = -1) -> None:
        began, self.name_or_path = perf_counter(), path
        self.handle = load(path, n_gpu_layers=gpu_layers)
        self.api = api = library()
        self.on_gpu = bool(api.llama_supports_gpu_offload() and gpu_layers)
        weakref.finalize(self, api.llama_model_free, self.handle)
        self._refuse_other_kinds()
        self.vocab_size = int(api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.handle)))
        self.trained = int(api.llama_model_n_ctx_train(self.handle))
        self.stateful = bool(
            api.llama_model_is_recurrent(self.handle) or api.llama_model_is_hybrid(self.handle)
        )
        LOG.info("loaded %s: %s, in %.2f s", path, self.description, perf_counter() - began)

    def __repr__(self) -> str:
        return f"GgufModel({self.name_or_path!r})"

    @property
    def config(self) -> GgufModel:
        """The model itself: it has the `vocab_size` and `eos_token_id` of a Transformers config."""
        return self

    @property
    def description(self) -> str:
        """Architecture, precision and size, such as `llama ?B all F32, 22.8M parameters`."""
        room = ctypes.create_string_buffer(256)
        self.api.llama_model_desc(self.handle, room, 256)
        millions = self.api.llama_model_n_params(self.handle) / 1e6
        return f"{room.value.decode('utf-8', 'replace')}, {millions:.1f}M parameters"

    @property
    def cache(self) -> str:
        """The precision of keys and values: float32 where all weights are, else llama.cpp's default."""
        kind = self.api.llama_model_ftype(self.handle) & ~self.api.LLAMA_FTYPE_GUESSED
        return "f32" if kind == self.api.LLAMA_FTYPE_ALL_F32 else "f16"

    @cached_property
    def floating(self) -> bool:
        """Whether matrices are float: most of them, or those that choose among experts."""
        api, kind = self.api, self.api.llama_model_ftype(self.handle) & ~self.api.LLAMA_FTYPE_GUESSED
        most = (api.LLAMA_FTYPE_ALL_F32, api.LLAMA_FTYPE_MOSTLY_F16, api.LLAMA_FTYPE_MOSTLY_BF16)
        experts = metadata(self.handle, f"{metadata(self.handle, 'general.architecture')}.expert_count")
        return kind in most or int(experts or 0) > 0

    @property
    def has_vocabulary(self) -> bool:
        """Whether the file says what its tokens mean."""
        vocab = self.api.llama_model_get_vocab(self.handle)
        return bool(self.api.llama_vocab_type(vocab) != self.api.LLAMA_VOCAB_TYPE_NONE)

    @cached_property
    def tokenizer(self) -> GgufTokenizer:
        """The file's own tokenizer.

        Raises:
            UserError: it has no vocabulary.
        """
        return GgufTokenizer(self.handle, name=self.name_or_path, owner=self)

    @cached_property
    def eos_token_id(self) -> list[int]:
        """Every token that ends a text; none in a file without a vocabulary."""
        return sorted(self.tokenizer.ends) if self.has_vocabulary else []

    @cached_property
    def switches_at(self) -> int:
        """The context size above which llama.cpp uses other rotary frequencies (LongRoPE); 0 if none."""
        kind = metadata(self.handle, "general.architecture")
        scaling = metadata(self.handle, f"{kind}.rope.scaling.type") or "longrope"
        border = metadata(self.handle, f"{kind}.rope.scaling.original_context_length")
        return int(border) if border and scaling == "longrope" else 0

    def _refuse_other_kinds(self) -> None:
        api, wrong = self.api, ""
        if api.llama_model_has_encoder(self.handle):
            wrong = "an encoder"
        elif not api.llama_model_has_decoder(self.handle):
            wrong = "no decoder"
        elif api.llama_model_is_diffusion(self.handle):
            wrong = "no next token: it works by diffusion"
        if wrong:
            raise UserError(f"{self.name_or_path} has {wrong}: name a causal language model")
