"""The model of a GGUF file as a folder that Transformers reads, with the values of its weights."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import redirect_stderr
from importlib.util import find_spec
from io import StringIO
from logging import getLogger
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...inputs import expanded
from ..stages import quiet

READERS = ("gguf", "accelerate")  # with which Transformers reads the file
LOG = getLogger(__name__)


def export_folder(file: str | Path, folder: str | Path) -> Path:
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
    try:
        return write_folder(source, out)
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"cannot write {str(folder)!r}: {error.strerror or error}") from error
    except Exception as error:  # Transformers refuses files in many ways
        raise UserError(f"Transformers cannot read {str(file)!r}: {error}") from error


def write_folder(file: Path, folder: Path, card: str = "") -> Path:
    """Write the model of a GGUF file as a folder, seen whole or not at all, with this README.md.

    Raises:
        UserError: a package that reads such files is missing.
        OSError, ValueError: it cannot be written, or read.
    """
    if missing := [name for name in READERS if find_spec(name) is None]:
        names = " ".join(missing)
        raise UserError(f"{file.name} needs {' and '.join(missing)} to be read: pip install {names}")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    LOG.info("converting %s to %s", file, folder)
    part = Path(tempfile.mkdtemp(dir=folder.parent, suffix=".part"))
    source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    try:
        with quiet(), redirect_stderr(StringIO()):  # a bar of its own that no setting hides
            auto: Any = AutoModelForCausalLM  # its methods are untyped
            model = auto.from_pretrained(**source, dtype=torch.float32)
            # The weights are plain numbers now, which Transformers refuses to save while it has their reader.
            model.hf_quantizer = None
            vars(model.config).pop("quantization_config", None)
            model.save_pretrained(part)
            AutoTokenizer.from_pretrained(**source).save_pretrained(part)
        if card:
            (part / "README.md").write_text(card, encoding="utf-8")
        part.chmod(0o755)  # temporary folders are their user's alone
        return part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
