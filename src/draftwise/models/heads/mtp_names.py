"""Which tensor of a layer of multi-token prediction is which, by its name and its shape."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

# Where such a layer lies: after the model's own layers (DeepSeek-V3, GLM-4.5), in a part `mtp` with layers
# of its own (Qwen3-Next, Qwen3.5), or in a list (MiMo; `speculators`).
AFTER = re.compile(r"^(?:(?:.*\.)?(?:model|language_model)\.)?layers\.(\d+)\.(.+)$")
WITHIN = re.compile(r"^(?:.*\.)?mtp(?:\.layers|_layers)\.(\d+)\.(.+)$")
BESIDE = re.compile(r"^(?:.*\.)?mtp\.(?!layers\.)(.+)$")

MIMO = re.compile(r"^(?:.*\.)?model\.mtp_layers\.")

NORMS = (("words", r"enorm|emb|token"), ("states", r"hnorm|hidden"), ("last", r"norm"))
KNOWN = "DeepSeek-V3's, GLM-4.5's, Qwen3-Next's, Qwen3.5's, MiMo's and those of speculators"


@dataclass(slots=True)
class Roles:
    """The tensors by role: `found` has `words`, `states`, `last` (norms), `joined` (the projection), and
    perhaps `embed_tokens` and `lm_head`; `layer` has those of the decoder layer, by name within it.

    Two facts are not in names or shapes. `states_first`: the projection reads the state before the token, as
    only MiMo's does. `normed`: later tokens of a draft continue from the states after the last norm; with
    DeepSeek's layout, whose last norm belongs to the output layer (`shared_head`), from those before it.
    """

    layer: dict[str, Tensor] = field(default_factory=dict)
    found: dict[str, Tensor] = field(default_factory=dict)
    states_first: bool = False
    normed: bool = True


def inside(name: str, depth: int) -> bool:
    """Whether a tensor belongs to multi-token prediction, in a model of so many layers."""
    if name.endswith("inv_freq"):
        return False
    if "mtp" in name:
        return True
    after = AFTER.match(name)
    return after is not None and int(after[1]) >= depth


def roles(name: str, given: Mapping[str, Tensor], depth: int, width: int, vocab_size: int) -> Roles:
    """The role of every tensor of the first such layer.

    Raises:
        UserError: a tensor has no known role, or a role no tensor, or it was made for another model.
    """
    found = Roles(states_first=any(map(MIMO.match, given)))
    for key, tensor in sorted(given.items()):
        rest = _rest(name, key, depth)
        if rest is None:
            continue
        if "scale" in rest.rpartition(".")[2]:
            raise UserError(
                f"model {name!r}: its layer of multi-token prediction is quantised ({key}), which is not "
                "supported: name the same model in bfloat16 as mtp?folder=FOLDER"
            )
        if (role := _role(name, key, rest, tensor, width, vocab_size)) is None:
            found.layer[rest] = tensor
        elif role in found.found:
            raise _unknown(name, key, tensor)
        else:
            found.found[role] = tensor
            found.normed &= not (role == "last" and "shared_head" in rest)
    missing = [role for role in ("words", "states", "joined", "last") if role not in found.found]
    if missing:
        what = {"joined": "a projection of two states to one", "last": "a last norm"}
        said = what.get(missing[0], f"a norm of the {missing[0]}")
        raise UserError(
            f"model {name!r}: its layer of multi-token prediction has no tensor for {said}; known layouts "
            f"are {KNOWN}: fetch its files again, or use another drafter"
        )
    return found


def _rest(name: str, key: str, depth: int) -> str | None:
    """A tensor's name within the first layer, None for those of later ones."""
    within = WITHIN.match(key)
    if within:
        return within[2] if int(within[1]) == 0 else None
    if beside := BESIDE.match(key):
        return beside[1]
    after = AFTER.match(key)
    if after and int(after[1]) >= depth:
        return after[2] if int(after[1]) == depth else None
    raise _unknown(name, key, None)


def _role(name: str, key: str, rest: str, tensor: Tensor, width: int, vocab_size: int) -> str | None:
    """The role of a tensor, None for one of the decoder layer's."""
    top = rest.removesuffix(".weight")
    if tensor.dim() == 2 and ("embed" in top or top in ("shared_head.head", "lm_head")):
        if tuple(tensor.shape) != (vocab_size, width):
            raise UserError(
                f"model {name!r}: {key} is {tuple(tensor.shape)} and the target's {(vocab_size, width)}: "
                "name the folder of this target"
            )
        return "embed_tokens" if "embed" in top else "lm_head"
    if "." in top.removeprefix("shared_head."):
        return None
    if tensor.dim() == 2:
        if tensor.shape[1] != 2 * tensor.shape[0]:
            raise _unknown(name, key, tensor)
        if len(tensor) != width:
            raise UserError(
                f"model {name!r}: {key} is for states {len(tensor)} wide and the target's are {width}: name "
                "the folder of this target"
            )
        return "joined"
    if top in ("input_layernorm", "post_attention_layernorm"):
        return None
    return next(
        (role for role, pattern in NORMS if re.search(pattern, top.removeprefix("shared_head."))), None
    )


def _unknown(name: str, key: str, tensor: Tensor | None) -> UserError:
    shape = "" if tensor is None else f" of shape {tuple(tensor.shape)}"
    return UserError(
        f"model {name!r}: its layer of multi-token prediction has a tensor {key}{shape} of unknown use; "
        f"known layouts are {KNOWN}: use another drafter"
    )
