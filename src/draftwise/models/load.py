"""Finds and loads models and tokenizers by name: `zoo:NAME`, a local folder, or a Hugging Face id.

Importing this module loads no torch; only `load_model` does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from logging import getLogger
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..inputs import expanded, parse_json
from . import zoo
from .hub import look_up
from .memory import is_out_of_memory, out_of_memory, warn_if_too_large
from .stages import announce, quiet

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

DTYPES = ("auto", "float32", "bfloat16", "float16")

LOG = getLogger(__name__)

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack")


def resolve(name: str) -> str:
    """Return the name in a form that Transformers can load: a folder's path, or a hub id unchanged.

    Raises:
        UserError: no such bundled model, the bundled models are not installed, or no model has such a name.
    """
    if name.startswith(zoo.PREFIX):
        return str(zoo.find(name))
    folder = expanded(name)
    if name and folder.is_dir():
        return str(folder)
    if folder.is_file():
        if name.lower().endswith(".gguf"):
            raise UserError(f"model {name!r} is a GGUF file: name a folder or a Hugging Face id here")
        raise UserError(f"model {name!r} is a file: name the folder that holds config.json and the weights")
    if not _HUB_ID.fullmatch(name) or name.startswith("."):
        raise UserError(f"no model {name!r}: give an existing folder, a Hugging Face id or zoo:target")
    return name


def weights_of(name: str) -> Path:
    """Return the file with the weights of a classifier or a router: `zoo:NAME`, a folder, or the file."""
    place = expanded(resolve(name) if name.startswith(zoo.PREFIX) else name)
    return place / "model.safetensors" if place.is_dir() else place


def load_model(
    name: str,
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "auto",
    device_map: Any = None,
    trust_remote_code: bool = False,
    attn_implementation: str | None = None,
    lazy: bool = False,
) -> PreTrainedModel:
    """Load a decoder-only causal language model from Safetensors, ready to run.

    `dtype` "auto" is float32 on the CPU and the checkpoint's own dtype elsewhere; `device` "auto" is the
    first available of cuda, mps and cpu. A quantised model, or one with a `device_map`, keeps the dtype and
    devices that Transformers assigns. With `lazy`, a CPU's float32 weights of linear layers stay in a file
    of 16 bits until `arrange` packs or reads them.

    Raises:
        UserError: the model cannot be found or is of an unsupported kind; the message names the remedy.
    """
    path, start = locate(name), perf_counter()
    announce(f"reading {name}")
    place = _find_device(device)
    with quiet(), explained(name, files="config.json"):
        config = _read_config(name, path, trust_remote_code)
    fixed = device_map is not None or hasattr(config, "quantization_config")
    precision = _choose_dtype(dtype, "" if fixed else place.type)
    lazy = lazy and not fixed and place.type == "cpu" and str(precision).endswith("float32")
    if not fixed:
        with explained(name, files="config.json"):
            stays_short = lazy and _reads_16_bits()  # then a model needs about what its file has
            warn_if_too_large(name, path, "auto" if stays_short else precision, place)
    options = {"device_map": device_map, "attn_implementation": attn_implementation}
    options = {key: value for key, value in options.items() if value is not None}
    options |= {"config": config, "dtype": precision, "trust_remote_code": trust_remote_code}
    with quiet(), explained(name):
        model = _read_lazily(path, **options) if lazy else _read_weights(path, **options)
        loaded: PreTrainedModel = model.eval() if fixed else model.to(place).eval()
    size, kind = loaded.num_parameters(), type(loaded).__name__
    LOG.info(
        "loaded %s: %s, %.1fM parameters, %s on %s, in %.2f s",
        *(name, kind, size / 1e6, loaded.dtype, loaded.device, perf_counter() - start),
    )
    return loaded


def _read_weights(path: str, **options: Any) -> Any:
    from transformers import AutoModelForCausalLM

    load: Any = AutoModelForCausalLM.from_pretrained  # its declared type omits the loading report
    # Transformers accepts mismatched sizes; they are rejected below with a clear message.
    model, report = load(
        path, use_safetensors=True, ignore_mismatched_sizes=True, output_loading_info=True, **options
    )
    absent = sorted([*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])])
    if absent:
        # Transformers has initialised them with random numbers.
        raise ValueError(f"its weights do not fit its config.json, which asks for {absent[0]}")
    return model


def _reads_16_bits() -> bool:
    """Whether a kernel multiplies float32 with weights of 16 bits here."""
    import torch

    from .native.kernels import linear_kernel

    return linear_kernel(torch.float32, torch.bfloat16) is not None


def _read_lazily(path: str, **options: Any) -> Any:
    from .weights.lazy import lazy_files, read_all
    from .weights.packed import own_weights

    with lazy_files():
        model = _read_weights(path, **options)
    # Classes of others may do anything with their weights.
    is_plain = type(model).__module__.startswith("transformers.")
    read_all(model, keep=own_weights(model) if is_plain else ())
    return model


def load_tokenizer(name: str, *, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model; UserError if there is none under this name."""
    path = locate(name)
    folder = Path(path)
    if folder.is_dir() and not any([*folder.glob("*token*"), *folder.glob("vocab*")]):
        if use := _trained_use(name, folder):
            raise UserError(f"{name!r} is no language model, but from `draftwise train`: write {use}")
        raise UserError(f"model {name!r} has no tokenizer: its folder needs tokenizer.json")
    with quiet(), explained(name, "tokenizer", files="config.json and tokenizer files"):
        from transformers import AutoTokenizer

        auto: Any = AutoTokenizer  # its methods are untyped
        tokenizer: PreTrainedTokenizerBase = auto.from_pretrained(path, trust_remote_code=trust_remote_code)
    return tokenizer


def _trained_use(name: str, folder: Path) -> str:
    """How a head, a classifier or a router of `draftwise train` is used; "" of anything else."""
    try:
        results = parse_json((folder / "results.json").read_bytes())
        verb, kind = results["train"], results.get("kind")
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return ""
    options = {"eagle": f"--drafters eagle:{name}", "medusa": f"--drafters medusa:{name}"}
    options |= {"classifier": f"--policy '{kind}?model={name}'", "router": f"--policy router:{name}"}
    return options.get(verb, "") if isinstance(verb, str) else ""


def locate(name: str) -> str:
    """Return the location of a language model for Transformers: a folder's path, or a hub id.

    Raises:
        UserError: there is none, or the name is a bundled head, classifier or router.
    """
    if name.startswith(zoo.PREFIX):
        model = zoo.bundled(name)
        if not model.layers:
            raise UserError(f"{name} is not a language model: {model.description}")
        return model.path
    path = resolve(name)
    if not Path(path).is_dir():
        look_up(path)
    return path


def _read_config(name: str, path: str, trust_remote_code: bool) -> Any:
    """The configuration of a supported model; rejects others before any weights are read."""
    from transformers import AutoConfig, PreTrainedConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    raw, _ = PreTrainedConfig.get_config_dict(path)
    if not isinstance(raw, dict):
        raise TypeError("it must hold a JSON object")
    kind = str(raw.get("model_type", ""))
    own_code = "auto_map" in raw and kind not in CONFIG_MAPPING
    if own_code and not trust_remote_code:
        raise UserError(f"model {name!r} brings its own code: read it, then allow --trust-remote-code")
    if not own_code and kind not in CONFIG_MAPPING:
        kind = f"the unknown type {kind!r}" if kind else "no config.json with a model_type"
        raise UserError(f"model {name!r} has {kind}: name another, or update Transformers")
    config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    _refuse_other_kinds(name, kind, config, raw)
    if Path(path).is_dir():
        _refuse_pickles(name, Path(path))
    return config


def _refuse_other_kinds(name: str, kind: str, config: Any, raw: Mapping[str, Any]) -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

    remedy = "name a decoder-only text model, such as zoo:target"
    if getattr(config, "is_encoder_decoder", False):
        raise UserError(f"model {name!r} ({kind}) is an encoder-decoder, which is not supported: {remedy}")
    # Some multimodal models are loaded by AutoModelForCausalLM; they are used for text only.
    if kind not in CAUSAL and any(hasattr(config, part) for part in ("vision_config", "audio_config")):
        raise UserError(f"model {name!r} ({kind}) reads images or sound, which is not supported: {remedy}")
    # A model trained with another head would load, and generate nonsense.
    heads = raw.get("architectures") or ()
    causal = any(head in CAUSAL.values() or head.endswith(("CausalLM", "LMHeadModel")) for head in heads)
    if heads and not causal and "auto_map" not in raw:
        raise UserError(f"model {name!r} is a {heads[0]}, not a causal language model: {remedy}")


def _refuse_pickles(name: str, folder: Path) -> None:
    """Only Safetensors are accepted: loading a pickle can run code."""
    if any(folder.glob("*.safetensors")):
        return
    pickled = next((file.name for kind in _PICKLED for file in folder.glob(kind)), None)
    if pickled:
        raise UserError(
            f"model {name!r} has weights in {pickled} only, which could run code when read: "
            "convert it with save_pretrained, which writes Safetensors"
        )
    raise UserError(f"model {name!r} has no weights: its folder needs model.safetensors")


def _find_device(device: str | torch.device) -> torch.device:
    import torch

    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        if is_out_of_memory(error):
            raise out_of_memory(f"device {str(device)!r}", error) from error
        raise UserError(f"device {str(device)!r} cannot be used: choose auto, cpu, cuda or mps") from error
    return place


def check_dtype(dtype: str) -> None:
    if dtype not in DTYPES:
        raise UserError(f"unknown dtype {dtype!r}: choose from {', '.join(DTYPES)}")


def _choose_dtype(dtype: str | torch.dtype, device_type: str) -> str | torch.dtype:
    if not isinstance(dtype, str):
        return dtype
    check_dtype(dtype)
    return "float32" if dtype == "auto" and device_type == "cpu" else dtype


@contextmanager
def explained(
    name: str, what: str = "model", *, files: str = "config.json, generation_config.json and weights"
) -> Iterator[None]:
    """Turn the errors of a failed load into one line with the model, its files and the remedy.

    For wrong files Transformers raises errors of nearly every type, tokenizers a plain `Exception`.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise out_of_memory(f"the {what} {name!r}", error) from error
        if Path(resolve(name)).is_dir():
            remedy = f"its {files} must be as save_pretrained writes them"
        else:
            remedy = "check the name, the network and your access to it, or name a local folder"
        raise UserError(f"cannot load the {what} {name!r}: {_first_sentence(error)}; {remedy}") from error


def _first_sentence(error: Exception) -> str:
    """The first line of an error, with the next one after a colon, and with the type of a terse error."""
    lines = [line.strip() for line in str(error).strip().splitlines()] or [""]
    first = " ".join(lines[: 2 if lines[0].endswith(":") else 1]).rstrip(". ")
    terse = not first or isinstance(error, (TypeError, AttributeError, LookupError, ArithmeticError))
    return f"{type(error).__name__}: {first}".rstrip(": ") if terse else first


def embedded(model: Any) -> int:
    table = model.get_input_embeddings()
    return int(getattr(table, "num_embeddings", 0) or table.weight.shape[0])


def disagreement(theirs: Any, ours: Any) -> str | None:
    """A token that two tokenizers have different ids for, or only one of them knows; None if there is none.

    Ids after the smaller vocabulary that one side alone knows are padding.
    """
    a, b = theirs.get_vocab(), ours.get_vocab()
    base = min(theirs.vocab_size, ours.vocab_size)
    wrong = next((token for token in a.keys() & b.keys() if a[token] != b[token]), None)
    if wrong is not None:
        return str(wrong)
    return next((token for token in a.keys() ^ b.keys() if a.get(token, b.get(token)) < base), None)


def check_vocabulary(drafter: str, theirs: Any, target: str, ours: Any) -> None:
    """Reject a drafter whose token ids have other meanings; ids known to one side only are padding."""
    token = disagreement(theirs, ours)
    if token is not None:
        a, b = len(theirs.get_vocab()), len(ours.get_vocab())
        raise UserError(
            f"the drafter {drafter} ({a} tokens) and the target {target} ({b} tokens) have "
            f"different vocabularies (they disagree on {token!r}): choose a drafter of the target's family"
        )
