"""One GGUF file as llama.cpp loads it, and its tokenizer with Transformers' interface."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from logging import getLogger
from pathlib import Path
from time import perf_counter
from typing import Any
from weakref import finalize

from ...errors import UserError
from .library import library, load, metadata, replaced

BROKEN = "\N{REPLACEMENT CHARACTER}"
UNKNOWN, UNUSED, CONTROL, USER, BYTE = 1, 2, 8, 16, 32  # llama.cpp's LLAMA_TOKEN_ATTR_*
NONE, SENTENCEPIECE, BPE = 0, 1, 2  # LLAMA_VOCAB_TYPE_*
NAMED = ("bos", "eos", "unknown", "separator", "padding", "mask")
NAMES = {"unknown": "unk", "separator": "sep", "padding": "pad"}  # as Transformers calls them


class GgufTokenizer:
    """The tokenizer of a loaded GGUF file: llama.cpp turns text into ids and ids into pieces of text.

    Its ids and texts are those of the Transformers tokenizer that the file was converted from. `ends` are the
    tokens after which llama.cpp stops.
    """

    def __init__(self, model: Any, *, name: str = "", owner: Any = None) -> None:
        """Read the vocabulary of `model`, the pointer of a `llama_model`; `owner` is kept alive with it.

        Raises:
            UserError: the file has no vocabulary.
        """
        self.lib, self.model, self.owner, self.name_or_path = library(), model, owner, name
        self.vocab = self.lib.llama_model_get_vocab(model)
        self.kind = int(self.lib.llama_vocab_type(self.vocab))
        if self.kind == NONE:
            raise UserError(
                f"the GGUF file {name!r} has no vocabulary: convert it with `draftwise export gguf`"
            )
        self.size = int(self.lib.llama_vocab_n_tokens(self.vocab))
        self.attributes = [int(self.lib.llama_vocab_get_attr(self.vocab, i)) for i in range(self.size)]
        self.pieces: dict[int, bytes] = {}
        stripped = metadata(model, "tokenizer.ggml.add_space_prefix") or str(self.kind == SENTENCEPIECE)
        self.strips = stripped.lower() == "true"
        self.bos_token_id, self.eos_token_id, self.pad_token_id = map(self.special.get, ("bos", "eos", "pad"))

    @classmethod
    def from_file(cls, path: str | Path, *, pre: str = "") -> GgufTokenizer:
        """The tokenizer of a file, whose weights are not read; `pre` replaces its pre-tokenizer's name.

        Raises:
            UserError: it is not a GGUF file, or has no vocabulary.
        """
        model = load(path, vocab_only=True, **(replaced("tokenizer.ggml.pre", pre) if pre else {}))
        try:
            tokenizer = cls(model, name=str(path))
        except UserError:
            library().llama_model_free(model)
            raise
        finalize(tokenizer, library().llama_model_free, model)
        return tokenizer

    # -- vocabulary --------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.get_vocab())

    @cached_property
    def tokens(self) -> list[str]:
        read = self.lib.llama_vocab_get_text
        return [read(self.vocab, i).decode("utf-8", "replace") for i in range(self.size)]

    @cached_property
    def ids(self) -> dict[str, int]:
        """The id of every token's name; padding of the vocabulary is left out."""
        named = enumerate(zip(self.tokens, self.attributes, strict=True))
        return {token: i for i, (token, attribute) in named if not attribute & UNUSED}

    @cached_property
    def vocab_size(self) -> int:
        """How many tokens precede those that were added at the end."""
        added = CONTROL | USER | UNUSED
        return next((i + 1 for i in reversed(range(self.size)) if not self.attributes[i] & added), 0)

    @cached_property
    def ends(self) -> frozenset[int]:
        """Every token that ends a text."""
        likely = [i for i, attribute in enumerate(self.attributes) if attribute & CONTROL]
        likely += [getattr(self.lib, f"llama_vocab_{name}")(self.vocab) for name in ("eos", "eot")]
        ends = {i for i in likely if i >= 0 and self.lib.llama_vocab_is_eog(self.vocab, i)}
        if self.kind == BPE and metadata(self.model, "tokenizer.ggml.eos_token_id") is None:
            ends -= {int(self.lib.llama_vocab_eos(self.vocab))}  # llama.cpp's guess for any such file
        return frozenset(ends)

    @cached_property
    def special(self) -> dict[str, int]:
        """The named special tokens: `bos`, `eos`, `unk`, `sep`, `pad`, `mask`, those that the file has."""
        special = {}
        for name in NAMED:
            number = metadata(self.model, f"tokenizer.ggml.{name}_token_id")
            if number is not None and 0 <= int(number) < self.size:
                special[NAMES.get(name, name)] = int(number)
        if self.kind == SENTENCEPIECE:
            special = {"bos": 1, "eos": 2, "unk": 0} | special  # as llama.cpp has it
        return special

    @property
    def special_tokens_map(self) -> dict[str, str]:
        """The named special tokens as text, as a chat template sees them."""
        return {f"{name}_token": self.tokens[i] for name, i in self.special.items()}

    @property
    def all_special_ids(self) -> list[int]:
        """The tokens that `decode` leaves out with `skip_special_tokens`."""
        return [i for i, attribute in enumerate(self.attributes) if attribute & (CONTROL | UNKNOWN)]

    @property
    def all_special_tokens(self) -> list[str]:
        return [self.tokens[i] for i in self.all_special_ids]

    def get_vocab(self) -> dict[str, int]:
        return dict(self.ids)

    def convert_ids_to_tokens(self, ids: int | Sequence[int]) -> Any:
        return self.tokens[ids] if isinstance(ids, int) else [self.tokens[i] for i in ids]

    # -- text to tokens ----------------------------------------------------------------------------

    def __call__(
        self, text: str | Sequence[str], *, add_special_tokens: bool = True, **_: Any
    ) -> dict[str, Any]:
        """The ids of a text, or of each of several, under `input_ids`."""
        if isinstance(text, str):
            return {"input_ids": self.encode(text, add_special_tokens=add_special_tokens)}
        return {"input_ids": [self.encode(one, add_special_tokens=add_special_tokens) for one in text]}

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The ids of a text; special tokens written in it become their ids, as in Transformers."""
        raw = text.encode()
        room = len(raw) + 8
        while True:
            out = (ctypes.c_int32 * room)()
            n = self.lib.llama_tokenize(self.vocab, raw, len(raw), out, room, add_special_tokens, True)
            if n >= 0:
                return out[:n]
            room = -n

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        return_dict: bool = True,
        **variables: Any,
    ) -> Any:
        """The text of messages in the file's own template, or its ids, with Transformers' own renderer."""
        from transformers.utils.chat_template_utils import render_jinja_template

        if self.chat_template is None:
            raise ValueError("the GGUF file has no chat template")
        prompts: Any = render_jinja_template(  # texts, and where answers are in them
            [[{k: v for k, v in message.items() if v is not None} for message in conversation]],
            tools=list(tools) if tools else None,
            chat_template=self.chat_template,
            add_generation_prompt=add_generation_prompt,
            **(self.special_tokens_map | variables),
        )
        text = prompts[0][0]
        if not tokenize:
            return text
        ids = self.encode(text, add_special_tokens=False)
        return {"input_ids": ids} if return_dict else ids

    @cached_property
    def chat_template(self) -> str | None:
        """The Jinja template of the file; None if it has none."""
        return metadata(self.model, "tokenizer.chat_template") or None

    # -- tokens to text ----------------------------------------------------------------------------

    def decode(self, token_ids: int | Iterable[int], skip_special_tokens: bool = False, **_: Any) -> str:
        """The text of tokens, with its spaces unchanged."""
        ids = [token_ids] if isinstance(token_ids, int) else [int(i) for i in token_ids]
        if skip_special_tokens:
            ids = [i for i in ids if not 0 <= i < self.size or not self.attributes[i] & (CONTROL | UNKNOWN)]
        if self.kind == BPE:
            text = b"".join(map(self.piece, ids)).decode("utf-8", "replace")
        else:
            text = "".join(self._run(byte, list(run)) for byte, run in groupby(ids, self._is_byte))
        return text[1:] if self.strips and text.startswith(" ") else text

    def piece(self, token: int) -> bytes:
        """The bytes of one token, which may be a part of a character.

        Raises:
            UserError: there is no such token.
        """
        if token not in self.pieces:
            if not 0 <= token < self.size:  # llama.cpp would end the process
                raise UserError(f"token id {token} is outside the vocabulary of {self.size}")
            room = 64
            while True:
                buffer = ctypes.create_string_buffer(room)
                n = self.lib.llama_token_to_piece(self.vocab, token, buffer, room, 0, True)
                if n >= 0:
                    break
                room = -n
            self.pieces[token] = buffer.raw[:n]
        return self.pieces[token]

    def _is_byte(self, token: int) -> bool:
        return bool(self.attributes[token] & BYTE)

    def _run(self, byte: bool, ids: list[int]) -> str:
        """Consecutive tokens of a kind; bytes are characters only if all of them are, as in Transformers."""
        raw = b"".join(map(self.piece, ids))
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return BROKEN * len(ids) if byte else raw.decode("utf-8", "replace")


LOG = getLogger(__name__)


class GgufModel:
    """The weights of one GGUF file.

    `vocab_size` is the number of token ids, `trained` the longest text that the model was trained for.
    `stateful` models keep one state for each text, which does not go back to every earlier token. Layers lie
    on the GPU if llama.cpp was built for one (`on_gpu`): the first `gpu_layers` of them, -1 for all. Weights
    that llama.cpp would `repack` for this processor are multiplied by one function for a single row and by
    another for several.

    Raises:
        UserError: no such file, one that llama.cpp cannot read, or no causal language model.
    """

    generation_config = None

    def __init__(self, path: str, *, gpu_layers: int = -1, repack: bool = True) -> None:
        start, self.name_or_path = perf_counter(), path
        settings = {} if repack else {"use_extra_bufts": False}
        self.handle = load(path, n_gpu_layers=gpu_layers, **settings)
        self.api = api = library()
        self.on_gpu = bool(api.llama_supports_gpu_offload() and gpu_layers)
        weakref.finalize(self, api.llama_model_free, self.handle)
        self._refuse_other_kinds()
        self.vocab_size = int(api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.handle)))
        self.trained = int(api.llama_model_n_ctx_train(self.handle))
        self.stateful = bool(
            api.llama_model_is_recurrent(self.handle) or api.llama_model_is_hybrid(self.handle)
        )
        self.file_type = api.llama_model_ftype(self.handle) & ~api.LLAMA_FTYPE_GUESSED
        LOG.info("loaded %s: %s, in %.2f s", path, self.description, perf_counter() - start)

    def __repr__(self) -> str:
        return f"GgufModel({self.name_or_path!r})"

    @property
    def config(self) -> GgufModel:
        """The model itself: it has the `vocab_size` and `eos_token_id` of a Transformers config."""
        return self

    @property
    def description(self) -> str:
        room = ctypes.create_string_buffer(256)
        self.api.llama_model_desc(self.handle, room, 256)
        millions = self.api.llama_model_n_params(self.handle) / 1e6
        return f"{room.value.decode('utf-8', 'replace')}, {millions:.1f}M parameters"

    @property
    def cache(self) -> str:
        """The precision of keys and values: float32 where all weights are, else llama.cpp's default."""
        return "f32" if self.file_type == self.api.LLAMA_FTYPE_ALL_F32 else "f16"

    @cached_property
    def floating(self) -> bool:
        """Whether matrices are float: most of them, or those that choose among experts."""
        api = self.api
        most = (api.LLAMA_FTYPE_ALL_F32, api.LLAMA_FTYPE_MOSTLY_F16, api.LLAMA_FTYPE_MOSTLY_BF16)
        experts = metadata(self.handle, f"{metadata(self.handle, 'general.architecture')}.expert_count")
        return self.file_type in most or int(experts or 0) > 0

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
        threshold = metadata(self.handle, f"{kind}.rope.scaling.original_context_length")
        return int(threshold) if threshold and scaling == "longrope" else 0

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
