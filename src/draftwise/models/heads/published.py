"""Loads a published EAGLE head of any kind and checks that it was made for this target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .eagle import Eagle
from .eagle3 import Eagle3, PEagle
from .files import fill
from .fresh import beside, low_middle_high
from .kinds import Published, read_head, warn_of_other_target

EAGLES: dict[str, type[Eagle]] = {"eagle": Eagle, "eagle3": Eagle3, "peagle": PEagle}


def load_eagle(name: str | Path, target: Any) -> Eagle:
    """Load a published EAGLE, EAGLE-3 or P-EAGLE head, in the `speculators` format or its authors' own.

    Raises:
        UserError: the files cannot be read, or are not such a head for this target.
    """
    return make_eagle(read_head(str(name)), target)


def make_eagle(found: Published, target: Any) -> Eagle:
    """The head that was read, on the target's device and in its dtype.

    Raises:
        UserError: it is of another kind, or was made for another target.
    """
    if found.kind not in EAGLES:
        raise found.refuse(
            f"it is of the kind {found.kind}, not one of {', '.join(EAGLES)}: name one of these"
        )
    check_vocabulary(found, target)
    config = _config(found, target)
    head = beside(EAGLES[found.kind](config, target, own=found.own), target)
    fill(head, mapped(found, head), found.name)
    warn_of_other_target(found.name, target)
    return head.eval()


def _config(found: Published, target: Any) -> Any:
    """The head's configuration, completed from its tensors."""
    tensors, settings = found.tensors, found.settings
    bias = any(key.endswith("self_attn.q_proj.bias") for key in tensors)
    more: dict[str, Any] = {"attention_bias": bias}
    if found.kind == "eagle":
        more["bias"] = "fc.bias" in tensors
    else:
        fuses = bool(settings.get("use_aux_hidden_state", True))
        ids = (settings.get("eagle_aux_hidden_state_layer_ids") or low_middle_high(target)) if fuses else [-1]
        more |= {"eagle_aux_hidden_state_layer_ids": ids, "use_aux_hidden_state": fuses}
        if "lm_head.weight" in tensors:
            more["draft_vocab_size"] = len(tensors["lm_head.weight"])
    if found.kind == "peagle":
        check_mask(found, target)
    config = found.config(**more)
    if "sliding_attention" in (getattr(config, "layer_types", None) or ()):
        raise found.refuse(
            f"its layers see a window of {config.sliding_window} tokens: choose one that sees all"
        )
    if found.kind != "eagle":
        _check_layers(found, config, target)
    return config


def _check_layers(found: Published, config: Any, target: Any) -> None:
    """The layers read exist, and `fc` reads as many states as there are layers."""
    text = target.config.get_text_config(decoder=True)
    ids, depth, width = (
        config.eagle_aux_hidden_state_layer_ids,
        int(text.num_hidden_layers),
        int(text.hidden_size),
    )
    wrong = next((k for k in ids if not -1 <= k < depth), None)
    if wrong is not None:
        raise found.refuse(
            f"it reads layer {wrong} (eagle_aux_hidden_state_layer_ids), and this target has the layers 0 to "
            f"{depth - 1}: choose the head made for this target"
        )
    fc = found.tensors.get("fc.weight")
    if fc is not None and fc.shape[1] != len(ids) * width:
        raise found.refuse(
            f"its fc reads {fc.shape[1]} numbers, and {len(ids)} layers of this target, {width} wide, give "
            f"{len(ids) * width}: choose the head made for this target, or fix its "
            "eagle_aux_hidden_state_layer_ids"
        )


def check_vocabulary(found: Published, target: Any) -> None:
    """The head's token ids are the target's."""
    size, tensors = int(target.config.get_text_config(decoder=True).vocab_size), found.tensors
    places = {"embed_tokens.weight": "embedding", "t2d": "map of tokens (t2d)"}
    for key, said in places.items():
        if key in tensors and len(tensors[key]) != size:
            raise found.refuse(
                f"its {said} has {len(tensors[key])} tokens, and the target {size}: choose the head made for "
                "this target"
            )
    rows = len(tensors["lm_head.weight"]) if "lm_head.weight" in tensors else size
    wanted = int(found.settings.get("draft_vocab_size") or rows)
    if "d2t" not in tensors and min(rows, wanted) < size:
        raise found.refuse(
            f"it drafts {min(rows, wanted)} of the target's {size} tokens, and has no tensor d2t that says "
            "which: fetch its files again, d2t among them"
        )
    if "d2t" in tensors:
        _check_ids(found, size, rows if "lm_head.weight" in tensors else len(tensors["d2t"]))


def check_mask(found: Published, target: Any) -> None:
    """The mask token of a head that drafts in parallel has an embedding."""
    mask, size = (
        found.settings.get("mask_token_id"),
        int(target.config.get_text_config(decoder=True).vocab_size),
    )
    if mask is None:
        raise found.refuse(
            "its config.json has no mask_token_id: add the id of the token that it was trained with"
        )
    if not 0 <= int(mask) < size:
        raise found.refuse(
            f"its mask token {mask} is not among the target's {size} tokens: choose the head made for this "
            "target"
        )


def _check_ids(found: Published, size: int, rows: int) -> None:
    """`d2t` gives each drafted token an id of its own, and `t2d` tells the same."""
    d2t, t2d = found.tensors["d2t"].long(), found.tensors.get("t2d")
    ids = d2t + torch.arange(len(d2t))
    different = len(set(ids.tolist()))
    if len(ids) != rows:
        raise found.refuse(f"its d2t has {len(ids)} tokens and its lm_head {rows}: fetch both from one head")
    if int(ids.min()) < 0 or int(ids.max()) >= size or different < len(ids):
        raise found.refuse(
            f"its d2t names {different} different tokens for {len(ids)}, from {int(ids.min())} to "
            f"{int(ids.max())}, and the target has {size}: choose the head made for this target"
        )
    if t2d is not None and t2d.bool().nonzero().flatten().tolist() != sorted(ids.tolist()):
        raise found.refuse("its t2d and d2t name different tokens: fetch both from one head")


def mapped(found: Published, head: Any) -> dict[str, Tensor]:
    """The tensors, with both vocabulary maps and an output layer if the head has a vocabulary of its own.

    A head without an output layer shares the target's: its rows of the drafted tokens.
    """
    others = {key: t for key, t in found.tensors.items() if key not in ("d2t", "t2d")}
    if "mask_hidden" in others:
        others["mask_hidden"] = others["mask_hidden"].reshape(1, 1, -1)
    if head.ids is None:
        return others
    d2t = found.tensors["d2t"].long()
    ids = d2t + torch.arange(len(d2t))
    maps = {"d2t": d2t, "t2d": torch.zeros(head.vocab_size, dtype=torch.bool).index_fill_(0, ids, True)}
    if "lm_head.weight" not in others:
        weight = head.shared[1].weight
        maps["lm_head.weight"] = weight.detach()[ids.to(weight.device)]
    return others | maps
