"""The files of published heads: their kind, settings and tensors under one name each, however published."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ...errors import DraftwiseWarning, UserError, one_line
from ...inputs import parse_json
from ...writing import replacing, write_text
from ..load import explained, resolve
from ..memory import is_out_of_memory, out_of_memory

KINDS = ("eagle", "eagle3", "peagle", "dflash", "mtp")
PICKLED = ("pytorch_model.bin", "medusa_lm_head.pt")
WANTED = ["config.json", "*.safetensors", "*.safetensors.index.json", *PICKLED]
MASKS = ("mask_token_id", "pard_token", "ptd_token_id")  # names of the mask token's id
UNUSED = ("verifier_lm_head.", "verifier_norm.")  # copies of the target's own, for training only
OTHER_TARGET = "choose the head made for this target"
P = ParamSpec("P")
R = TypeVar("R")


def folder_of(name: str) -> Path:
    """Return the local folder of a head: `zoo:NAME`, a folder, or a download by hub id.

    Raises:
        UserError: it does not exist, or has no config.json.
    """
    folder = Path(resolve(name))
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        with explained(name, "head"):
            folder = Path(snapshot_download(name, allow_patterns=WANTED))
    if not (folder / "config.json").is_file():
        raise UserError(f"head {name!r} has no config.json: give the folder that holds it and the weights")
    return folder


def read_config(folder: Path) -> dict[str, Any]:
    """Return the contents of config.json; a UserError unless it is a JSON object."""
    try:
        config = parse_json((folder / "config.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{folder / 'config.json'} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise UserError(f"{folder / 'config.json'} holds no settings: write what save() writes")
    return config


def read_tensors(folder: Path, wanted: Callable[[str], bool] = lambda name: True) -> dict[str, Tensor]:
    """Read the tensors of a folder whose names are `wanted`, from Safetensors or else a pickle of tensors.

    A pickle is read by `torch.load(weights_only=True)`, which runs no code.

    Raises:
        UserError: there are no weights, or they cannot be read.
    """
    files = sorted(folder.glob("*.safetensors")) or list(filter(Path.is_file, (folder / n for n in PICKLED)))
    if not files:
        raise UserError(f"head {str(folder)!r} has no weights: its folder needs model.safetensors")
    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            if file.suffix == ".safetensors":
                with safe_open(file, framework="pt") as opened:
                    tensors |= {name: opened.get_tensor(name) for name in filter(wanted, opened.keys())}
            else:
                tensors |= _unpickle(file)
        except (SafetensorError, RuntimeError, OSError, EOFError, ValueError) as error:
            raise UserError(f"cannot read {file}: {str(error).splitlines()[0]}; fetch it again") from error
    return {name: tensor for name, tensor in tensors.items() if wanted(name)}


def _unpickle(file: Path) -> dict[str, Tensor]:
    from pickle import UnpicklingError

    try:
        tensors = torch.load(file, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        raise ValueError("it holds more than tensors, which could run code when read") from error
    if not isinstance(tensors, Mapping) or not all(isinstance(t, Tensor) for t in tensors.values()):
        raise ValueError("it holds no mapping of names to tensors")
    return dict(tensors)


def fill(module: nn.Module, tensors: Mapping[str, Tensor], name: str) -> None:
    """Load exactly these tensors into a module; buffers of rotary embeddings are left to the module.

    Raises:
        UserError: a tensor is missing, unexpected, or has another shape.
    """
    expected = {key: tuple(t.shape) for key, t in module.state_dict().items() if "rotary_emb" not in key}
    shapes = {key: tuple(t.shape) for key, t in tensors.items()}
    for key in sorted(expected.keys() | shapes.keys()):
        if expected.get(key) != shapes.get(key):
            raise UserError(
                f"head {name!r}: the tensor {key} is {shapes.get(key, 'missing')} where this target asks for "
                f"{expected.get(key, 'none')}: {OTHER_TARGET}"
            )
    module.load_state_dict(dict(tensors), strict=False)


def write(folder: str | Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write config.json and model.safetensors, each atomically."""
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    with replacing(place / "model.safetensors") as part:
        save_file({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, part)
    write_text(place / "config.json", json.dumps(dict(config), indent=2, sort_keys=True) + "\n")


@dataclass(frozen=True, slots=True)
class Published:
    """A head as it was read: its name, its kind, its settings and its tensors.

    `settings` are those of config.json, those of its decoder layers, and those that only one format has, in
    one mapping. `layers_kind` is the kind of model that its decoder layers are of, and `verifier` says which
    target it was made for.
    """

    name: str
    kind: str
    layers_kind: str
    settings: Mapping[str, Any]
    tensors: dict[str, Tensor]
    verifier: Mapping[str, Any]

    @property
    def own(self) -> Sequence[str]:
        return [part for part in ("embed_tokens", "lm_head") if f"{part}.weight" in self.tensors]

    def config(self, **more: Any) -> Any:
        """Return the configuration of its decoder layers, with all other settings as attributes.

        Raises:
            UserError: the settings do not make one.
        """
        settings = {k: v for k, v in self.settings.items() if k not in ("dtype", "torch_dtype", "model_type")}
        try:
            return CONFIG_MAPPING[self.layers_kind](**settings | more)
        except (KeyError, TypeError, ValueError, StrictDataclassError) as error:
            reason = " ".join(str(error).split())
            raise self.refuse(f"its config.json does not make a head ({reason})") from error

    def refuse(self, reason: str) -> UserError:
        return UserError(f"head {self.name!r}: {reason}")


MALFORMED = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


def explains_files(load: Callable[P, R]) -> Callable[P, R]:
    """Let a function that loads a head raise nothing but a UserError where the files are malformed.

    Settings may be of any type and tensors of any shape, so that almost anything may be raised. Its first
    argument is the head, as a name, a folder or what was read.
    """

    @wraps(load)
    def explained_load(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return load(*args, **kwargs)
        except UserError:
            raise
        except (*MALFORMED, MemoryError) as error:
            name = args[0].name if isinstance(args[0], Published) else str(args[0])
            if is_out_of_memory(error):
                raise out_of_memory(f"the head {name!r}", error) from error
            raise UserError(
                f"head {name!r}: its files do not make a head ({one_line(error)}): fetch them again"
            ) from error

    return explained_load


@explains_files
def read_head(name: str) -> Published:
    """Read a published head: the `speculators` format, or its authors' own.

    Raises:
        UserError: the files cannot be read, or are of a kind that is not supported.
    """
    folder = folder_of(name)
    raw = read_config(folder)
    named_kind = raw.get("speculators_model_type")
    if named_kind is not None and named_kind not in KINDS:
        raise UserError(
            f"head {name!r}: its speculators_model_type {named_kind!r} is not supported: choose a head "
            f"of the kind {', '.join(KINDS)}"
        )
    tensors = _rename_tensors(read_tensors(folder))
    inner, dflash = raw.get("transformer_layer_config") or {}, raw.get("dflash_config") or {}
    settings = {k: v for k, v in raw.items() if k not in ("transformer_layer_config", "speculators_config")}
    settings |= inner | (raw.get("eagle_config") or {}) | dflash
    settings |= {key: raw[key] for key in ("architectures",) if key in raw}
    masks = [place[key] for place in (raw, dflash) for key in MASKS if place.get(key) is not None]
    settings |= {"mask_token_id": masks[0]} if masks else {}
    library = raw.get("speculators_config") or {}
    methods = library.get("proposal_methods") or [{}]
    settings["longest"] = int(methods[0].get("speculative_tokens") or 0)
    layers = str(inner.get("model_type") or "qwen3") if named_kind is not None else _layers_kind(tensors)
    kind = named_kind or _head_kind(raw, tensors)
    return Published(name, kind, layers, settings, tensors, library.get("verifier") or {})


def _head_kind(raw: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """The kind of a head in its authors' format, by its tensors; DFlash has settings of its own."""
    if "dflash_config" in raw:
        return "dflash"
    if "mask_hidden" in tensors:
        return "peagle"
    fused = any(name.startswith("midlayer.") for name in tensors)
    return "eagle3" if fused or "d2t" in tensors else "eagle"


def _layers_kind(tensors: Mapping[str, Tensor]) -> str:
    """The kind of the decoder layers in an authors' format, whose model_type is often not theirs."""
    ends = {name.partition("self_attn.")[2] for name in tensors}
    if "q_norm.weight" in ends:
        return "qwen3"
    return "qwen2" if "q_proj.bias" in ends and "o_proj.bias" not in ends else "llama"


def _rename_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensor names as in our modules, for every known way of publishing a head."""
    renamed = {}
    eagle3 = any(".hidden_norm." in name.removeprefix("model.") for name in tensors)
    for name, tensor in tensors.items():
        new = name.removeprefix("model.")
        if name.endswith("inv_freq") or new.startswith(UNUSED):
            continue
        for old, short in (("fusion_fc.", "fc."), ("transformer.", "layers.0.")):  # early `speculators`
            new = short + new.removeprefix(old) if new.startswith(old) else new
        if eagle3 and new.startswith("layers."):  # `layers.0` is our `midlayer`, `layers.1` the first above
            number, _, rest = new.removeprefix("layers.").partition(".")
            new = f"midlayer.{rest}" if number == "0" else f"upper.{int(number) - 1}.{rest}"
        renamed[new] = tensor
    return renamed


def warn_of_other_target(published: Published, target: Any) -> None:
    """Warn if a head in the `speculators` format names another target than this one.

    The names decide, without the folders before them; architectures where one has no name. Text stays exact
    with any head; a model fine-tuned from the one that it names may accept as much.
    """
    verifier = published.verifier
    named_target, kinds = str(verifier.get("name_or_path") or ""), verifier.get("architectures") or []
    own_name, kind = str(getattr(target, "name_or_path", "") or ""), type(target).__name__
    ends = {path.rstrip("/").rpartition("/")[2].lower() for path in (named_target, own_name)}
    same = len(ends) == 1 if named_target and own_name else not kinds or kind in kinds
    if not same:
        named = ", ".join(kinds) or "no architecture named"
        warnings.warn(
            f"head {published.name!r} was made for {named_target or 'a target'} ({named}), and the target is "
            f"{own_name or 'unnamed'} ({kind}): it may accept little; {OTHER_TARGET}",
            DraftwiseWarning,
            stacklevel=2,
        )


def check_vocabulary(published: Published, target: Any) -> None:
    """Raise a UserError unless the head's token ids are the target's."""
    size, tensors = int(target.config.get_text_config(decoder=True).vocab_size), published.tensors
    words = len(tensors.get("embed_tokens.weight", range(size)))
    if words != size:
        raise published.refuse(f"its embedding has {words} tokens, and the target {size}: {OTHER_TARGET}")
    if "d2t" in tensors:
        ids = _ids(published)
        different = len(set(ids.tolist()))
        if int(ids.min()) < 0 or int(ids.max()) >= size or different < len(ids):
            raise published.refuse(
                f"its d2t names {different} different tokens for {len(ids)}, from {int(ids.min())} to "
                f"{int(ids.max())}, and the target has {size}: {OTHER_TARGET}"
            )
        return
    rows = len(tensors.get("lm_head.weight", range(size)))
    drafted = min(rows, int(published.settings.get("draft_vocab_size") or rows))
    if drafted < size and published.settings.get("vocab_size") == drafted:
        raise published.refuse(f"it drafts {drafted} tokens, and the target has {size}: {OTHER_TARGET}")
    if drafted < size:
        raise published.refuse(
            f"it drafts {drafted} of the target's {size} tokens, and has no tensor d2t that says which: "
            "fetch its files again, d2t among them"
        )


def check_mask(published: Published, target: Any) -> None:
    """Raise a UserError unless the mask token of a head that drafts in parallel has an embedding."""
    mask = published.settings.get("mask_token_id")
    size = int(target.config.get_text_config(decoder=True).vocab_size)
    if mask is None:
        raise published.refuse(
            "its config.json has no mask_token_id: add the id of the token that it was trained with"
        )
    if not 0 <= int(mask) < size:
        raise published.refuse(
            f"its mask token {mask} is not among the target's {size} tokens: {OTHER_TARGET}"
        )


def check_features(published: Published, layers: int, target: Any, key: str) -> None:
    """Raise a UserError unless `fc` reads the states of so many layers, which the setting `key` names."""
    width = int(target.config.get_text_config(decoder=True).hidden_size)
    fc = published.tensors.get("fc.weight")
    if fc is not None and fc.shape[1] != layers * width:
        raise published.refuse(
            f"its fc reads {fc.shape[1]} numbers, and {layers} layers of this target, {width} wide, give "
            f"{layers * width}: {OTHER_TARGET}, or fix its {key}"
        )


def complete_tensors(published: Published, head: Any) -> dict[str, Tensor]:
    """Return the tensors, with both vocabulary maps and an output layer if the head has its own vocabulary.

    A head without an output layer shares the target's: its rows of the drafted tokens.
    """
    tensors = {key: t for key, t in published.tensors.items() if key not in ("d2t", "t2d")}
    if "mask_hidden" in tensors:
        tensors["mask_hidden"] = tensors["mask_hidden"].reshape(1, 1, -1)
    if head.ids is None:
        return tensors
    ids = _ids(published)
    if "lm_head.weight" not in tensors:
        weight = head.shared[1].weight
        tensors["lm_head.weight"] = weight.detach()[ids.to(weight.device)]
    included = torch.zeros(head.vocab_size, dtype=torch.bool).index_fill_(0, ids, True)
    return tensors | {"d2t": published.tensors["d2t"].long(), "t2d": included}


def _ids(published: Published) -> Tensor:
    d2t = published.tensors["d2t"].long()
    return d2t + torch.arange(len(d2t))
