"""Which kind of head a folder holds, and its settings under one name each, however it was published."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ...errors import DraftwiseWarning, UserError
from .files import folder_of, read_config, read_tensors

KINDS = ("eagle", "eagle3", "peagle", "dflash", "mtp")
MASKS = ("mask_token_id", "pard_token", "ptd_token_id")  # names of the mask token's id
UNUSED = ("verifier_lm_head.", "verifier_norm.")  # copies of the target's own, for training only


@dataclass(frozen=True, slots=True)
class Published:
    """A head as it was read: its name, its kind, its settings and its tensors.

    `settings` are those of config.json, those of its decoder layers, and those that only one format has, in
    one mapping. `layers_kind` is the kind of model that its decoder layers are of.
    """

    name: str
    kind: str
    layers_kind: str
    settings: Mapping[str, Any]
    tensors: dict[str, Tensor]

    @property
    def own(self) -> Sequence[str]:
        """Which of embedding and output layer it brings."""
        return [part for part in ("embed_tokens", "lm_head") if f"{part}.weight" in self.tensors]

    def config(self, **more: Any) -> Any:
        """The configuration of its decoder layers, with all other settings as attributes.

        Raises:
            UserError: the settings do not make one, or ask for a window.
        """
        kept = {k: v for k, v in self.settings.items() if k not in ("dtype", "torch_dtype", "model_type")}
        try:
            found = CONFIG_MAPPING[self.layers_kind](**kept | more)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"head {self.name!r}: its config.json does not make a head ({error})") from error
        return found

    def refuse(self, said: str) -> UserError:
        """An error that names the head."""
        return UserError(f"head {self.name!r}: {said}")


def read_head(name: str) -> Published:
    """A published head: the `speculators` format, or its authors' own.

    Raises:
        UserError: the files cannot be read, or are of a kind that is not supported.
    """
    folder = folder_of(name)
    raw = read_config(folder)
    given = raw.get("speculators_model_type")
    if given is not None and given not in KINDS:
        raise UserError(
            f"head {name!r}: its speculators_model_type {given!r} is not supported: choose a head "
            f"of the kind {', '.join(KINDS)}"
        )
    tensors = _renamed(read_tensors(folder))
    inner = raw.get("transformer_layer_config") or {}
    settings = {k: v for k, v in raw.items() if k not in ("transformer_layer_config", "speculators_config")}
    settings |= inner
    settings |= raw.get("eagle_config") or {}
    settings |= raw.get("dflash_config") or {}
    settings |= {key: raw[key] for key in ("architectures",) if key in raw}
    settings |= _proposed(raw)
    kind = given or _kind(raw, tensors)
    layers = str(inner.get("model_type") or "qwen3") if given is not None else _layers(tensors)
    return Published(name, kind, layers, settings, tensors)


def _proposed(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The mask token, and the number of tokens that the head was trained to draft."""
    places = [raw, raw.get("dflash_config") or {}]
    masks = [place[key] for place in places for key in MASKS if place.get(key) is not None]
    found: dict[str, Any] = {"mask_token_id": masks[0]} if masks else {}
    methods = (raw.get("speculators_config") or {}).get("proposal_methods") or [{}]
    return found | {"longest": int(methods[0].get("speculative_tokens") or 0)}


def _kind(raw: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """The kind of a head in its authors' format, by its tensors; DFlash has settings of its own."""
    if "dflash_config" in raw:
        return "dflash"
    if "mask_hidden" in tensors:
        return "peagle"
    fused = any(name.startswith("midlayer.") for name in tensors)
    return "eagle3" if fused or "d2t" in tensors else "eagle"


def _layers(tensors: Mapping[str, Tensor]) -> str:
    """The kind of the decoder layers in an authors' format, whose model_type is often not theirs."""
    ends = {name.partition("self_attn.")[2] for name in tensors}
    if "q_norm.weight" in ends:
        return "qwen3"
    return "qwen2" if "q_proj.bias" in ends and "o_proj.bias" not in ends else "llama"


def _renamed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensor names as in our modules, for every known way of publishing a head."""
    names = {name: name.removeprefix("model.") for name in tensors if not name.endswith("inv_freq")}
    names = {old: new for old, new in names.items() if not new.startswith(UNUSED)}
    names = {old: _first(new) for old, new in names.items()}
    eagle3 = any(".hidden_norm." in name for name in names.values())
    if eagle3:
        names = {old: _counted(new) for old, new in names.items()}
    return {new: tensors[old] for old, new in names.items()}


def _first(name: str) -> str:
    """Names of the first release of `speculators`."""
    for old, new in (("fusion_fc.", "fc."), ("transformer.", "layers.0.")):
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name


def _counted(name: str) -> str:
    """`layers.0` is EAGLE-3's `midlayer`, and `layers.1` the first above it."""
    if not name.startswith("layers."):
        return name
    number, _, rest = name.removeprefix("layers.").partition(".")
    return f"midlayer.{rest}" if number == "0" else f"upper.{int(number) - 1}.{rest}"


def warn_of_other_target(name: str, target: Any) -> None:
    """Warn if a head in the `speculators` format names another target than this one.

    The names decide, without the folders before them; architectures where one has no name. Text stays exact
    with any head; a model fine-tuned from the one that it names may accept as much.
    """
    verifier = (read_config(folder_of(name)).get("speculators_config") or {}).get("verifier") or {}
    theirs, kinds = str(verifier.get("name_or_path") or ""), verifier.get("architectures") or []
    mine, kind = str(getattr(target, "name_or_path", "") or ""), type(target).__name__
    same = _last(theirs) == _last(mine) if theirs and mine else not kinds or kind in kinds
    if not same:
        named = ", ".join(kinds) or "no architecture named"
        warnings.warn(
            f"head {name!r} was made for {theirs or 'a target'} ({named}), and the target is "
            f"{mine or 'unnamed'} ({kind}): it may accept little; choose the head made for this target",
            DraftwiseWarning,
            stacklevel=2,
        )


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2].lower()
