"""`auto` weighs drafts that a model begins and a lookup continues, without being asked for cascades."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from draftwise import Decoder
from draftwise.cli import main
from tests.generation.test_decoder import LONG, own

PARTS = ["zoo:sql", "zoo:general", "ngram", "suffix"]  # the first is bad at other domains
CASCADES = ["cascade:zoo:sql>ngram?match=1", "cascade:zoo:general>ngram?match=1"]


@pytest.mark.parametrize(
    ("drafters", "policy", "added"),
    [
        (PARTS, "auto", CASCADES),
        (PARTS, "", CASCADES),
        (PARTS, "ucb1", []),
        (["ngram", "suffix"], "auto", []),
        (["zoo:general"], "auto", []),
        (["zoo:general", "ngram", "cascade:zoo:general>ngram?match=2"], "auto", []),
        (["zoo:general?probe=no", "suffix"], "auto", ["cascade:zoo:general%3Fprobe=no>suffix?match=1"]),
    ],
)
def test_cascades_join_the_team_of_a_policy_that_weighs_them(
    drafters: list[str], policy: str, added: list[str]
) -> None:
    decoder = Decoder.from_pretrained("zoo:target", drafters=drafters, policy=policy)
    assert list(decoder.loop.pool.drafters) == [*drafters, *added]
    assert {arm.drafter for arm in decoder.loop.policy.arms} - {"none"} == {*drafters, *added}


def test_the_text_is_the_models_own_with_cascades(plain_model: Any) -> None:
    """With `cascades=0` they are weighed however short a pass is; one of the models is bad."""
    decoder = Decoder.from_pretrained("zoo:target", drafters=PARTS, policy="auto?cascades=0")
    for text in (LONG, "SELECT the names of all", "def add(a, b):"):
        out = decoder.generate(text, max_new_tokens=160)
        assert out.token_ids == own(plain_model, decoder.encode(text), 160)
    assert not any(decoder.loop.faults.values())


def test_files_of_teams_with_cascades_are_merged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the order of the team: with several cascades, another one would be another policy."""
    files, team = [str(tmp_path / f"{n}.json") for n in "ab"], [*PARTS[:3], "zoo:math"]
    for file in files:
        decoder = Decoder.from_pretrained("zoo:target", drafters=team, state=file)
        decoder.generate("One two three", max_new_tokens=8)
    merged = tmp_path / "all.json"
    assert main(["merge", *files, "--out", str(merged)]) == 0, capsys.readouterr().err
    again = Decoder.from_pretrained("zoo:target", drafters=team, state=str(merged))
    assert list(json.loads(merged.read_text())["drafters"]) == list(again.loop.pool.drafters)
    assert again.generate("One two three", max_new_tokens=8).token_ids
