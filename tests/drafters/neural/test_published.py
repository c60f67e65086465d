"""Published heads by name: text and distribution stay the target's, whatever the head is worth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwise.core.arms import Arm
from draftwise.core.drafts import Draft, Job
from draftwise.core.loop import Loop
from draftwise.drafters.neural.blocks import DFlashDrafter
from draftwise.drafters.neural.published import eagle
from draftwise.models.heads.eagle import PEagle, load_eagle
from draftwise.targets.hf import HFTarget
from tests.core.turns import Anyone
from tests.drafters.neural.heads import check_sampled, features, target
from tests.drafters.neural.test_eagle import opened, read_on, texts_of
from tests.effort import some
from tests.exactness.test_exact_hf import distribution_of
from tests.models.heads import folders
from tests.targets.test_hf import prompts
from tests.tiny import VOCAB, own_text

pytestmark = pytest.mark.filterwarnings("ignore:head .* was made for")
WRITE = {
    "eagle3": lambda folder: folders.eagle3(folder, layers="qwen3", depth=2, norm_output=True),
    "peagle": lambda folder: folders.eagle3(folder, kind="peagle"),
    "dflash": lambda folder: folders.dflash(folder),
    "dflash-authors": lambda folder: folders.dflash(folder, authors=True),
}


def bad(kind: str, place: Path) -> Path:
    return WRITE[kind](place / kind)


ARMS = (("", 4, 1), ("", 3, 4), ("?width=2&top=3", 6, 1), ("?sample=false", 3, 1))


def loop_of(made: Any, folder: Path, arms: tuple[tuple[str, int, int], ...] = ARMS) -> Loop:
    """A loop that draws among arms of a head by name: options, length and width."""
    from draftwise import registry

    reads = HFTarget(made, chunk=8)
    names = [f"eagle:{folder}{options}" for options, _, _ in arms]
    team = {
        name: registry.build("drafters", spec, spec.path, reads)
        for name in names
        if (spec := registry.parse(name))
    }
    policy = Anyone(tuple(Arm(n, k, width=w) for n, (_, k, w) in zip(names, arms, strict=True)))
    return Loop(reads, team, policy, policy)


@pytest.mark.parametrize("batch", some([4, 1], 2))
@pytest.mark.parametrize("kind", WRITE)
def test_greedy_text_is_the_targets(tmp_path: Path, kind: str, batch: int) -> None:
    made = target()
    own = [own_text(made, p, 20) for p in prompts()]
    said, rounds = texts_of(loop_of(made, bad(kind, tmp_path)), 20, batch)
    assert said == own
    assert any(r.drafted for r in rounds) and any(r.accepted < r.drafted for r in rounds)


@pytest.mark.parametrize("kind", some(["dflash", "eagle3", "peagle", "dflash-authors"], 2))
def test_the_distribution_is_the_targets(tmp_path: Path, kind: str) -> None:
    made, folder = target(scale=5.0), bad(kind, tmp_path)
    loop = loop_of(made, folder, (("", 3, 1), ("", 3, 3)))
    check_sampled(loop, distribution_of(made), length=4, n=400, beside=40)


def test_p_eagle_reads_all_places_in_one_pass(tmp_path: Path) -> None:
    """Two texts of different lengths: logits are those of the mask's pairs after the text, read at once."""
    folder = folders.eagle3(tmp_path / "head", kind="peagle")
    made, reads = target(), None
    reads, requests = opened(made, [[3, 4, 5], list(range(2, 22)) * 2])
    reads.hidden_states((0, 1, 1))
    drafter, head = eagle(str(folder), reads), load_eagle(folder, made)
    assert isinstance(head, PEagle) and head.ids is not None
    passes = 0

    def count(*_: Any) -> None:
        nonlocal passes
        passes += 1

    drafter.module.register_forward_pre_hook(count)
    assert drafter.draft([Job(r, 3) for r in requests]) == [Draft(), Draft()]  # no states of the text yet
    fresh = HFTarget(made, chunk=8)
    drafter = eagle(str(folder), fresh)
    drafter.module.register_forward_pre_hook(count)
    for request in requests:
        fresh.open(request)
    read_on(fresh, requests)
    for again in range(2):
        passes = 0
        drafts = drafter.draft([Job(r, 9, rows=True) for r in requests])
        assert passes == (1 if again else 2)  # the long text was read first, in a pass of its own
        for request, draft in zip(requests, drafts, strict=True):
            n = len(request.tokens)
            assert len(draft.tokens) == 4  # as many as the head was trained for
            ids = torch.tensor([request.tokens])
            known = features(made, ids, head.layers_read)[:, : n - 1]
            read = torch.cat((known, head.mask_hidden.expand(1, 3, -1)), 1)
            tokens = torch.tensor([[*request.tokens[1:], 2, 2, 2]])
            with torch.no_grad():
                narrow = head.logits(head(tokens, head.read(read)))[0, -4:]
            wanted = narrow.new_full((4, VOCAB), -torch.inf).index_copy(1, head.ids, narrow)
            torch.testing.assert_close(torch.stack(list(draft.rows)), wanted)


def test_dflash_fills_a_block_as_reading_it_all_gives(tmp_path: Path) -> None:
    """Two texts of different lengths, again after a few more tokens, and for a shorter copy of a text."""
    folder = folders.dflash(tmp_path / "head")
    made, fresh = target(), HFTarget(target(), chunk=8)
    _, requests = opened(made, [[3, 4, 5], list(range(2, 22)) * 6])
    drafter = eagle(str(folder), fresh)
    assert isinstance(drafter, DFlashDrafter)
    head, ids = drafter.module, drafter.module.ids
    assert ids is not None
    for request in requests:
        fresh.open(request)
    for _ in range(2):
        read_on(fresh, requests, 3)
        shorter = replace(requests[1], tokens=requests[1].tokens[:-2])
        jobs = [Job(request, 9, rows=True) for request in (*requests, shorter)]
        for job, draft in zip(jobs, drafter.draft(jobs), strict=True):
            tokens = job.request.tokens
            known = features(made, torch.tensor([tokens]), head.layers_read)[0, :-1]
            block = torch.tensor([[tokens[-1], 2, 2, 2]])
            with torch.no_grad():
                context = head.context(known, 0)[:, :, None]
                narrow = head.logits(head(block, torch.tensor([len(tokens) - 1]), context))[0]
            wanted = narrow.new_full((3, VOCAB), -torch.inf).index_copy(1, ids, narrow)
            torch.testing.assert_close(torch.stack(list(draft.rows)), wanted)
    drafter.close(requests[1])
    assert list(drafter.contexts) == [requests[0].id]
