"""llama.cpp, as llama-cpp-python brings it: imported when it is needed, checked, and quiet."""

from __future__ import annotations

import ctypes
import os
import struct
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from logging import getLogger
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...inputs import expanded
from .. import smollm2
from . import repacked

LOG = getLogger(__name__)
EXTRA = "pip install 'draftwise[gguf]'"
WARNING, SEVERE = 3, 4  # GGML_LOG_LEVEL_WARN, GGML_LOG_LEVEL_ERROR
UNTILED = ("GGML_CPU_TILED_MM", "0")  # products of many rows round as those of few; read at the first of them
MAGIC, VERSIONS = b"GGUF", (2, 3)

_ERRORS: deque[str] = deque(maxlen=20)  # the newest ones
_LISTENERS: list[Callable[[str], None]] = []  # who wants every line
_CALLBACKS: list[Any] = []  # which must live as long as the library


@cache
def library() -> Any:
    """Return the module `llama_cpp`, with llama.cpp initialised and silent.

    What llama.cpp logs goes to the logger of this module: errors and warnings at level INFO, the rest at
    DEBUG.

    Raises:
        UserError: it is not installed, or its shared library cannot be loaded.
    """
    try:
        module = import_module("llama_cpp")
    except ImportError as error:
        raise UserError(f"llama-cpp-python is not installed ({error}): {EXTRA}") from error
    except (OSError, RuntimeError) as error:
        why = str(error).splitlines()[0]
        raise UserError(f"llama-cpp-python cannot be loaded ({why}): install it again, {EXTRA}") from error
    os.environ.setdefault(*UNTILED)
    _CALLBACKS.append(module.llama_log_callback(_log))
    module.llama_log_set(_CALLBACKS[-1], ctypes.c_void_p(0))
    module.llama_backend_init()
    return module


def _log(level: int, text: bytes, _: Any) -> None:
    line = text.decode("utf-8", "replace").strip()
    if line:
        for listener in _LISTENERS:
            listener(line)
        if level == SEVERE:
            _ERRORS.append(line)
        (LOG.info if level in (WARNING, SEVERE) else LOG.debug)("llama.cpp: %s", line)


@contextmanager
def listening(listener: Callable[[str], None] | None = None) -> Iterator[deque[str]]:
    """Yield the errors that llama.cpp reports meanwhile, and pass every line that it logs to `listener`."""
    library()
    _ERRORS.clear()
    if listener:
        _LISTENERS.append(listener)
    try:
        yield _ERRORS
    finally:
        if listener:
            _LISTENERS.remove(listener)


def reason(errors: deque[str] = _ERRORS) -> str:
    """Return the first of these errors, without the function that reported it, and forget them."""
    first = errors[0].partition(": ")[2] or errors[0] if errors else "llama.cpp gives no reason"
    errors.clear()
    return first.strip().rstrip(".")


def load(path: str | Path, **params: Any) -> Any:
    """Load a GGUF file: the pointer of a `llama_model`, which the caller frees with `llama_model_free`.

    `params` are fields of `llama_model_params`; `vocab_only=True` reads metadata and vocabulary alone. Unless
    they say so, weights are repacked for this processor (`use_extra_bufts`) where that works.

    Raises:
        UserError: there is no such file, or llama.cpp cannot read it; the line says why.
    """
    check(path)
    lib, file = library(), find_file(str(path))
    settings = lib.llama_model_default_params()
    if not {"use_extra_bufts", "vocab_only"} & params.keys():
        settings.use_extra_bufts = repacked.works(lib)
    for key, value in params.items():
        setattr(settings, key, value)
    with listening() as errors:
        model = lib.llama_model_load_from_file(str(file).encode(), settings)
    if not model:
        why = reason(errors)
        raise UserError(f"llama.cpp cannot read {str(path)!r} ({why}): convert or download it again")
    return model


def find_file(path: str) -> Path:
    """Return the place of a GGUF file: a path, or zoo:smollm2.

    Raises:
        UserError: the package with that model is not installed.
    """
    return smollm2.gguf_file() if path == smollm2.NAME else expanded(path)


def check(path: str | Path) -> None:
    """Raise a UserError unless a file begins as a GGUF file that llama.cpp can read."""
    if not str(path):
        raise UserError("gguf has no path: write gguf:PATH")
    file = find_file(str(path))
    if not file.is_file():
        what = "is a folder" if file.is_dir() else "does not exist"
        raise UserError(f"GGUF file {str(path)!r} {what}: name an existing file")
    try:
        with file.open("rb") as opened:
            head = opened.read(24)
    except OSError as error:
        raise UserError(f"GGUF file {str(path)!r} cannot be read: {error.strerror or error}") from error
    if head[:4] != MAGIC:
        raise UserError(f"{str(path)!r} is not a GGUF file: it does not begin with GGUF")
    if len(head) < 24:
        raise UserError(f"GGUF file {str(path)!r} ends after {len(head)} bytes: convert or download it again")
    (version,) = struct.unpack("<I", head[4:8])
    if version not in VERSIONS:
        big = struct.unpack(">I", head[4:8])[0] in VERSIONS
        what = "is big-endian" if big else f"has version {version}, and llama.cpp reads 2 and 3"
        raise UserError(f"GGUF file {str(path)!r} {what}: convert it again")


def metadata(model: Any, key: str) -> str | None:
    """Return one entry of a file's metadata as text; None if there is none."""
    lib, length = library(), 256
    while True:
        buffer = ctypes.create_string_buffer(length)
        size = lib.llama_model_meta_val_str(model, key.encode(), buffer, length)
        if size < length:
            return None if size < 0 else buffer.raw[:size].decode("utf-8", "replace")
        length = size + 1


def replaced(key: str, text: str) -> dict[str, Any]:
    """The argument of `load` that replaces one text of the file's metadata."""
    lib = library()
    overrides = (lib.llama_model_kv_override * 2)()  # the second one, empty, ends the list
    overrides[0].key, overrides[0].tag = key.encode(), lib.LLAMA_KV_OVERRIDE_TYPE_STR
    overrides[0].value.val_str = text.encode()
    return {"kv_overrides": overrides}
