"""The model of a GGUF file as a folder that Transformers reads, with the values of its weights."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from logging import getLogger
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from ...errors import UserError
from ...inputs import expanded
from ..stages import announce, quiet

READERS = ("gguf", "accelerate")  # with which Transformers reads the file
LOG = getLogger(__name__)

Tell = Callable[[str, int, int], None]
"""Takes how far one phase is: what it is, how much is done, of how much."""


def tell_stage(what: str, done: int, total: int) -> None:
    """Report progress as a stage of loading."""
    announce(f"{what} {done}/{total}")


def export_folder(file: str | Path, folder: str | Path, *, tell: Tell = tell_stage) -> Path:
    """Write the model and the tokenizer of a GGUF file as Safetensors in float32; return the folder.

    Raises:
        UserError: no such file, an architecture that Transformers does not read, or a folder that exists or
            cannot be written.
    """
    source, out = expanded(file), expanded(folder)
    if not source.is_file():
        raise UserError(f"no file {str(file)!r}: name a GGUF file")
    if out.exists():
        raise UserError(f"{str(folder)!r} exists: name a new folder")
    if not out.parent.is_dir():
        raise UserError(f"no folder {str(out.parent)!r}: make it first")
    try:
        tempfile.TemporaryFile(dir=out.parent).close()  # before the work
        return write_folder(source, out, tell=tell)
    except OSError as error:
        raise UserError(
            f"cannot write {str(folder)!r}: {error.strerror or error}; choose another folder"
        ) from error


def write_folder(file: Path, folder: Path, card: str = "", *, tell: Tell = tell_stage) -> Path:
    """Write the model of a GGUF file as a folder, seen whole or not at all, with this README.md.

    Raises:
        UserError: the file cannot be read.
        OSError: the folder cannot be written.
    """
    LOG.info("converting %s to %s", file, folder)
    with quiet():
        with _counted(tell):
            parts = _read(file)
        tell("writing", 0, 1)
        part = Path(tempfile.mkdtemp(dir=folder.parent, suffix=".part"))
        try:
            for one in parts:
                one.save_pretrained(part)
            if card:
                (part / "README.md").write_text(card, encoding="utf-8")
            part.chmod(0o755)  # temporary folders are their user's alone, and files of Safetensors
            mode = (part / "config.json").stat().st_mode
            for weights in part.glob("*.safetensors"):
                weights.chmod(mode)
            return part.rename(folder)
        except SafetensorError as error:  # a full disk, too
            raise OSError(str(error)) from error
        finally:
            shutil.rmtree(part, ignore_errors=True)


@contextmanager
def _counted(tell: Tell) -> Iterator[None]:
    """Report the tensors that Transformers reads, in place of a bar of its own that no setting hides."""
    from transformers import modeling_gguf_pytorch_utils

    reader: Any = modeling_gguf_pytorch_utils

    def count(tensors: Sequence[Any], **_: Any) -> Iterator[Any]:
        for done, tensor in enumerate(tensors):
            tell("reading tensors", done, len(tensors))
            yield tensor
        tell("reading tensors", len(tensors), len(tensors))

    bar = getattr(reader, "tqdm", None)
    reader.tqdm = count
    try:
        yield
    finally:
        reader.tqdm = bar


def _read(file: Path) -> tuple[Any, Any]:
    """The model of a GGUF file in float32, and its tokenizer."""
    if missing := [name for name in READERS if find_spec(name) is None]:
        names = " ".join(missing)
        raise UserError(f"{file.name} needs {' and '.join(missing)} to be read: pip install {names}")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    auto: Any = AutoModelForCausalLM  # its methods are untyped
    try:
        model = auto.from_pretrained(**source, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(**source)
    except Exception as error:  # Transformers refuses files in many ways
        raise UserError(f"Transformers cannot read {str(file)!r}: {error}") from error
    # The weights are plain numbers now, which Transformers refuses to save while it has their reader.
    model.hf_quantizer = None
    vars(model.config).pop("quantization_config", None)
    return model, tokenizer
