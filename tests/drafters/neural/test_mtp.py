"""The drafter `mtp`: text and distribution stay the target's, and one that learnt the text is accepted."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwise import registry
from draftwise.build import build_drafters
from draftwise.core.arms import Arm
from draftwise.core.drafts import Job
from draftwise.core.loop import Loop
from draftwise.drafters.neural.eagle import EagleDrafter
from draftwise.drafters.neural.published import eagle
from draftwise.errors import DraftwiseWarning, UserError
from draftwise.models.heads.mtp import Mtp
from draftwise.specs import LoadOptions, parse_drafters
from draftwise.targets.hf import HFTarget
from tests.core.turns import Anyone
from tests.drafters.neural.heads import check_sampled
from tests.drafters.neural.test_eagle import by_hand, opened, read_on, texts_of
from tests.effort import some
from tests.exactness.test_exact_hf import distribution_of
from tests.models.heads.mtp_folders import LAYOUTS, loaded, written
from tests.targets.test_hf import prompts
from tests.tiny import model, own_text

NAMES = ("mtp", "mtp?width=3&top=3")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    @cache
    def make(family: str) -> Any:
        folder = tmp_path_factory.mktemp(family)
        written(folder, family, scale=3.0)
        return loaded(folder)

    return make


def loop_of(made: Any, trained: Mtp | None = None, trees: bool = True) -> Loop:
    reads = HFTarget(made, chunk=8)
    team: dict[str, Any] = {name: registry.build("drafters", registry.parse(name), reads) for name in NAMES}
    if trained is not None:
        team = {"mtp": EagleDrafter(trained, reads)}
    stateful = getattr(reads.runner, "stateful", False)
    arms = [Arm(name, 4) for name in team if not (stateful and "width" in name)]
    policy = Anyone(tuple(arms))
    return Loop(reads, team, policy, policy)


@pytest.mark.parametrize("batch", some([4, 1], 2))
@pytest.mark.parametrize("family", [name for name in LAYOUTS if name != "qwen3.5"])  # as slow as Qwen3-Next
def test_greedy_text_is_the_targets(made: Callable[[str], Any], family: str, batch: int) -> None:
    target = made(family)
    said, rounds = texts_of(loop_of(target), 16, batch)
    assert said == [own_text(target, p, 16) for p in prompts()]
    assert any(r.drafted for r in rounds) and any(r.accepted < r.drafted for r in rounds)


@pytest.mark.parametrize("family", some(["glm-4.5", "qwen3-next", "mimo", "deepseek-v3"], 4))
def test_the_distribution_is_the_targets(made: Callable[[str], Any], family: str) -> None:
    target = made(family)
    loop = loop_of(target)
    check_sampled(loop, distribution_of(target), length=4, n=300, beside=24)


@pytest.mark.parametrize("family", LAYOUTS)
def test_a_chain_goes_on_from_the_layers_own_states(made: Callable[[str], Any], family: str) -> None:
    """Texts of different lengths in one batch, from the layer's own cache, against reading it all at once."""
    model = made(family)
    reads, requests = opened(model, [[3, 4, 5], list(range(2, 22)) * 2])
    drafter: Any = registry.build("drafters", registry.parse("mtp"), reads)
    for _ in range(2):
        for request, draft in zip(
            requests, drafter.draft([Job(r, 3, rows=True) for r in requests]), strict=True
        ):
            for k in range(3):
                wanted = by_hand(drafter.module, model, request.tokens, list(draft.tokens[:k]))
                torch.testing.assert_close(draft.rows[k], wanted, rtol=1e-4, atol=1e-4)
        read_on(reads, requests, 3)


def test_where_the_layer_is_looked_for(tmp_path: Path) -> None:
    """In the target's own folder, in another one, or nowhere."""
    written(tmp_path, "mimo")
    made = loaded(tmp_path)
    made.name_or_path = ""
    reads = HFTarget(made)
    with pytest.raises(UserError, match=r"target was given without a name.*mtp\?folder=FOLDER"):
        registry.build("drafters", registry.parse("mtp"), reads)
    spec = registry.Spec("mtp", options={"folder": str(tmp_path)})
    assert isinstance(registry.build("drafters", spec, reads).module, Mtp)
    single = HFTarget(loaded(tmp_path).float())
    with pytest.warns(DraftwiseWarning, match="a head of the kind Mtp is not compiled"):
        specs = parse_drafters("mtp", LoadOptions(pack=True, compile="on"))
        (built,) = build_drafters(specs, single, None, "target").values()
    assert isinstance(built, EagleDrafter) and isinstance(built.module, Mtp)
    with pytest.raises(UserError, match="no model"):
        registry.build("drafters", registry.Spec("mtp", options={"folder": "/nowhere/at all"}), reads)


def test_a_folder_of_the_speculators_format_is_read_by_name(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    from tests.models.heads import folders

    written(tmp_path, "mimo")
    found = load_file(tmp_path / "model.safetensors")
    mine = {k.removeprefix("model."): t.clone() for k, t in found.items() if "mtp_layers" in k}
    config = folders.speculators("mtp", "qwen2", 3)
    folder = folders.write(tmp_path / "head", config, mine)
    assert isinstance(eagle(str(folder), HFTarget(loaded(tmp_path))).module, Mtp)
    with pytest.raises(UserError, match="like no layer of LlamaForCausalLM"):
        eagle(str(folder), HFTarget(model("llama")))
