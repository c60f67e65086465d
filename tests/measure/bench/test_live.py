from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from draftwise.measure.bench.contender import Generation, Item, Peer, Text
from draftwise.measure.bench.run import Runner, find_doubts
from draftwise.measure.results import describe_peer

from .fake import Fake, play, prompts

COPY = Item(-1, "copy", "copy", (1, 2, 1, 2))


class FakePeer(Fake, Peer):
    """Drafts three tokens a text, of which one is accepted, unless it is lazy."""

    drafts = True

    def __init__(self, name: str, *, lazy: bool = False, broken: bool = False) -> None:
        super().__init__(name)
        self.lazy, self.broken = lazy, broken

    @property
    def settings(self) -> dict[str, Any]:
        return {"threads": 2, "flash_attention": True}

    def prepare(self, groups: Sequence[Sequence[Item]], generation: Generation) -> None:
        super().prepare(groups, generation)
        if self.broken:
            raise RuntimeError("no compiler\nat all")

    def decode(self, items: Sequence[Item], generation: Generation) -> list[Text]:
        texts = super().decode(items, generation)
        return [Text(t.tokens, t.seconds, t.rounds) for t in texts] if self.lazy else texts


def run(folder: Path, *contenders: Fake) -> Runner:
    return play(folder, contenders, prompts(3), batches=(1, 2), copy=COPY)


def test_peers_are_told_all_groups_of_prompts_before_anything_is_timed(tmp_path: Path) -> None:
    ours, peer = Fake("none"), FakePeer("p")
    run(tmp_path, ours, peer)
    assert peer.prepared == [[0], [1], [2], [0, 1], [2], [-1]]
    assert not isinstance(ours, Peer) and isinstance(peer, Peer)


def test_each_peer_copies_a_text_and_keeps_nothing_of_it(tmp_path: Path) -> None:
    ours, live, lazy = Fake("none"), FakePeer("live"), FakePeer("lazy", lazy=True)
    records = run(tmp_path, ours, live, lazy).peers()
    assert [record["method"] for record in records] == ["live", "lazy"]
    assert records[0]["settings"] == {"threads": 2, "flash_attention": True}
    assert records[0]["copied"] == {"tokens": 2, "drafted": 3, "accepted": 1}
    assert records[0]["doubts"] == []
    assert records[1]["doubts"] == ["it drafted no token of a text to copy"]
    assert live.decoded[0] == [-1] and live.count == 6, "the text to copy is forgotten"


def test_what_is_known_of_peers_survives_an_interruption(tmp_path: Path) -> None:
    first = run(tmp_path, Fake("none"), FakePeer("p")).peers()
    again = FakePeer("p")
    assert run(tmp_path, Fake("none"), again).peers() == first
    assert again.decoded == []


def test_a_peer_that_cannot_prepare_is_left_out(tmp_path: Path) -> None:
    runner = run(tmp_path, Fake("none"), FakePeer("p", broken=True))
    assert runner.failed == {"p": "RuntimeError: no compiler"}
    assert runner.peers() == []


def test_doubts() -> None:
    copied = {"tokens": 9, "drafted": 4, "accepted": 0}
    record = {"settings": {"compiled while measured": 2}, "drafts": True, "copied": copied}
    assert list(find_doubts(record)) == [
        "it accepted no token of a text to copy",
        "2 more passes were compiled while it was measured: its times include that",
    ]
    assert list(find_doubts({"settings": {}, "drafts": False, "copied": copied | {"drafted": 0}})) == []


def test_records_in_words() -> None:
    record = {
        "settings": {"flash_attention": True, "freezing": False, "given": {"length": 3}},
        "prepared_seconds": 31.4,
        "drafts": True,
        "copied": {"tokens": 9, "drafted": 4, "accepted": 3},
    }
    assert describe_peer(record) == (
        "flash_attention on; freezing off; given length 3; compiled in 31 s; "
        "of a text to copy, 3 of 4 drafted tokens accepted"
    )
    quick = {"settings": {"threads": 1}, "prepared_seconds": 0.2, "drafts": False}
    assert describe_peer(quick) == "threads 1"
