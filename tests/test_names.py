"""Names that mean nothing are refused at once, with the one that was meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import draftwise
from draftwise import Decoder, UserError
from draftwise.drafters.names import check_drafters
from draftwise.models import hub
from draftwise.specs import parse_drafters, split_names


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Whom the hub was asked for; it knows nobody."""
    found: list[str] = []

    def look_up(name: str) -> None:
        found.append(name)
        raise UserError(f"the hub does not know {name}")

    monkeypatch.setattr("draftwise.models.load.look_up", look_up)
    return found


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("ngrm", "ngram"),
        ("ngrams?max=3", "ngram"),
        ("sufix", "suffix"),
        ("retreival:/a/store", "retrieval"),
        ("general", "zoo:general"),
        ("zoo:genral", "zoo:general"),
    ],
)
def test_a_typo_is_told_what_was_meant_and_no_hub_is_asked(name: str, meant: str, asked: list[str]) -> None:
    with pytest.raises(UserError, match=rf"unknown .*{name.partition('?')[0]}.*did you mean {meant}\?"):
        Decoder.from_pretrained("there/is/no/such/target", drafters=[name])
    assert not asked


def test_any_other_word_may_be_a_model(asked: list[str], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"unknown drafter 'gpt9': choose from .*the hub does not know gpt9"):
        check_drafters(parse_drafters(["gpt9"]))
    with pytest.raises(UserError, match="the hub does not know ngrm"):
        check_drafters(parse_drafters(["lm:ngrm"]))
    with pytest.raises(UserError, match="the hub does not know org/ngram"):
        check_drafters(parse_drafters(["org/ngram"]))
    assert asked == ["gpt9", "ngrm", "org/ngram"]
    (tmp_path / "ngrm").mkdir()
    check_drafters(parse_drafters([str(tmp_path / "ngrm"), "zoo:code", "none", "ngram?min=2", object()]))
    assert len(asked) == 3


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("autoo", "did you mean auto?"),
        ("statc-5", "did you mean static?"),
        ("tapout", "did you mean tapout-seq-ts?"),
        ("guess", "choose from adaedl, auto"),
        ("ucb1?nope=1", "ucb1 has no option 'nope'"),
        ("ucb1?arm=drafters", "did you mean arms? Or choose from"),
        (5, "text"),
    ],
)
def test_a_policys_name_is_looked_at_before_anything_is_loaded(policy: Any, said: str) -> None:
    with pytest.raises(UserError) as caught:
        Decoder.from_pretrained("there/is/no/such/target", drafters=["ngram"], policy=policy)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("drafter", "said"),
    [
        ("ngram?mx=3", "ngram has no option 'mx': did you mean max?"),
        ("zoo:general?windw=64", "lm has no option 'windw': did you mean window?"),
        ("suffix?depth=deep", "'deep' is not a whole number"),
    ],
)
def test_a_drafters_options_are_looked_at_before_anything_is_loaded(drafter: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        Decoder.from_pretrained("there/is/no/such/target", drafters=[drafter])
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "drafters", [5, [5], ["ngram", 5.0], {"a": 1}.items(), ["ngram", ""], "ngram,,suffix", None]
)
def test_what_are_no_drafters_are_refused_in_one_line(drafters: Any) -> None:
    with pytest.raises(UserError) as caught:
        Decoder.from_pretrained("zoo:target", drafters=drafters)
    assert "\n" not in str(caught.value)


def test_a_text_of_drafters_has_commas_between() -> None:
    assert split_names("ngram, suffix?max=3", "drafters") == ["ngram", "suffix?max=3"]
    assert split_names("", "drafters") == []
    decoder = Decoder.from_pretrained("zoo:target", drafters="ngram,suffix")
    assert list(decoder.loop.pool.drafters) == ["ngram", "suffix"]
    assert draftwise.vllm_config(drafters="ngram,suffix") == draftwise.vllm_config(
        drafters=["ngram", "suffix"]
    )


def test_the_hub_is_asked_once_and_not_again_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub.errors import RepositoryNotFoundError

    calls: list[tuple[str, float]] = []

    class Answers:
        def model_info(self, name: str, *, timeout: float) -> None:
            calls.append((name, timeout))
            if name == "away":
                raise ConnectionResetError("nobody there")
            if name == "nobody":
                raise RepositoryNotFoundError.__new__(RepositoryNotFoundError)

    monkeypatch.setattr(huggingface_hub, "HfApi", Answers)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    with pytest.raises(UserError, match=r"'away'.*cannot be asked \(nobody there\)") as told:
        hub.look_up("away")
    assert told.value.__context__ is None, "a program's trace is short"
    with pytest.raises(UserError, match="no model of that name on the hub"):
        hub.look_up("nobody")
    hub.look_up("somebody")
    hub.look_up("somebody")
    assert [name for name, _ in calls] == ["away", "nobody", "somebody"]
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    hub.look_up("away")
    assert len(calls) == 3, "offline, only what is there already is loaded"
