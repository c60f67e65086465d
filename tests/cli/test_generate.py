from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest

from draftwise.cli.generate import rows
from draftwise.core.arms import Arm
from draftwise.policies.auto.drafts import Candidate, Reason
from draftwise.testing.distributions import Vector
from draftwise.testing.drafter import SimDrafter

from .conftest import LETTERS, LINE, Models, Refused, Run, after

FIFTY = ("generate", "z ", "--max-new-tokens", "50")
TEXT = (LINE * 2)[:50]


def test_a_pipe_gets_the_text_and_nothing_else(models: Models, run: Run) -> None:
    assert run(*FIFTY) == (0, TEXT + "\n", "")


@pytest.mark.parametrize("drafters", ["none", "ngram", "suffix", "ngram,suffix"])
def test_the_text_does_not_depend_on_who_drafts(models: Models, run: Run, drafters: str) -> None:
    assert run(*FIFTY, "--drafters", drafters)[1] == TEXT + "\n"


def test_defaults(models: Models, run: Run) -> None:
    run(*FIFTY)
    run(*FIFTY, "--drafters", "none")
    run(*FIFTY, "--target", "my/model")
    drafted, plain, other = models.asked
    assert (drafted["drafters"], drafted["policy"]) == (["zoo:general", "ngram", "suffix"], "auto")
    assert (plain["drafters"], plain["policy"]) == (["none"], "none")
    assert other["drafters"] == ["ngram", "suffix"]


def test_verbose_reports_to_stderr(models: Models, run: Run) -> None:
    _, out, err = run(*FIFTY, "-v", "--drafters", "suffix", "--policy", "static-5")
    assert out == TEXT + "\n"
    err = err.splitlines()[-1]
    assert err.startswith("50 tokens in ")
    assert "tokens/s" in err
    assert "accepted a round" in err
    guessed = int(err.split("suffix ")[1].split(",")[0])
    assert 0 < guessed < 50
    assert f"target {50 - guessed}" in err


def test_a_terminal_gets_colours_a_legend_and_a_closing_line(
    models: Models, on_terminal: Callable[..., str]
) -> None:
    shown = on_terminal(*FIFTY, "--drafters", "suffix,ngram", "--policy", "static-5")
    text, legend, closing = shown.splitlines()
    assert text.replace("\x1b[32m", "").replace("\x1b[0m", "") == TEXT
    assert "\x1b[32mb" in text, "a guessed letter in the colour of its drafter"
    assert "e\x1b[32m" in text, "a vowel, which the drafter never guesses, in none"
    assert "\x1b[32m■ suffix" in legend
    assert "\x1b[36m■ ngram" in legend
    assert closing.startswith("50 tokens")


def test_a_draft_of_several_drafters_has_a_colour_too(
    models: Models, on_terminal: Callable[..., str]
) -> None:
    shown = on_terminal(*FIFTY, "--drafters", "suffix,ngram", "--policy", "draft-all")
    text, legend, _ = shown.splitlines()
    assert "\x1b[35mb" in text
    assert "\x1b[35m■ all" in legend


def test_escape_codes_of_a_model_do_not_reach_the_terminal(
    models: Models, on_terminal: Callable[..., str]
) -> None:
    def escapes(history: Sequence[int]) -> Vector:
        logits = after(1)(history)
        logits[LETTERS.index("\x1b")] = 30.0
        return logits

    models.distribution = escapes
    shown = on_terminal("generate", "a", "--max-new-tokens", "3", "--drafters", "none")
    assert shown.splitlines()[0] == "␛␛␛"


def test_json(models: Models, run: Run) -> None:
    status, out, err = run(*FIFTY, "--json", "--logprobs", "--policy", "static-5")
    row = json.loads(out)
    assert (status, err) == (0, "")
    assert row["text"] == TEXT
    assert "".join(piece["text"] for piece in row["pieces"]) == TEXT
    assert {piece["source"] for piece in row["pieces"]} > {"target"}
    assert [token for event in row["rounds"] for token in event["tokens"]] == row["token_ids"]
    assert sum(event["accepted"] for event in row["rounds"]) == row["stats"]["accepted"] > 0
    assert row["token_ids"] == [LETTERS.index(letter) for letter in TEXT]
    assert row["finish_reason"] == "length"
    assert len(row["logprobs"]) == 50
    assert max(row["logprobs"]) <= 0
    assert row["stats"]["tokens"] == 50
    assert "samples" not in row


def test_logprobs_are_reported_where_asked(models: Models, run: Run) -> None:
    assert "log-probability" in run(*FIFTY, "--logprobs")[2]
    assert "log-probability" not in run(*FIFTY, "-v")[2]


def test_without_a_seed_the_text_is_new_and_tells_its_seed(models: Models, run: Run) -> None:
    models.distribution = lambda history: after(1)(history) / 20.0
    draw = ("generate", "a", "--max-new-tokens", "20", "--temperature", "1", "--drafters", "none")
    one, two = (json.loads(run(*draw, "--json")[1]) for _ in range(2))
    assert one["text"] != two["text"]
    assert run(*draw, "--seed", str(one["seed"]))[1] == one["text"] + "\n"
    _, out, told = run(*draw, "-v")
    assert run(*draw, "--seed", told.split("seed ")[1].strip())[1] == out
    assert "seed" not in run(*FIFTY, "-v")[2]


def test_what_is_not_asked_for_is_the_models_own(models: Models, run: Run) -> None:
    models.defaults = {"max_new_tokens": 7, "temperature": 1.0, "top_k": 1}
    models.distribution = lambda history: after(1)(history) / 20.0
    own = json.loads(run("generate", "a", "--json")[1])
    assert own["seed"] is not None and len(own["token_ids"]) == 7
    greedy = json.loads(run("generate", "a", "--temperature", "0", "--max-new-tokens", "9", "--json")[1])
    assert greedy["seed"] is None and greedy["token_ids"][:7] == own["token_ids"]
    assert len(greedy["token_ids"]) == 9


def test_samples_as_text_have_a_line_between(models: Models, run: Run) -> None:
    assert run(*FIFTY, "-n", "2")[1] == f"{TEXT}\n\n{TEXT}\n"
    assert [sample["text"] for sample in json.loads(run(*FIFTY, "-n", "2", "--json")[1])["samples"]] == [
        TEXT
    ] * 2


def test_stop_strings(models: Models, run: Run) -> None:
    assert run(*FIFTY, "--stop", "xyz", "--stop", "fg")[1] == "abcde\n"


def test_sampling_options_arrive(models: Models, run: Run) -> None:
    even = run("generate", "a", "--max-new-tokens", "9", "--presence-penalty", "100", "--drafters", "none")
    assert even[1] == "bcdefghij\n"
    models.distribution = lambda history: after(0)(history)
    assert run("generate", "a", "--max-new-tokens", "4")[1] == "aaaa\n"
    penalty = run("generate", "a", "--max-new-tokens", "4", "--frequency-penalty", "100")[1].strip()
    assert len(set(penalty)) == 4


def test_prompt_from_standard_input(models: Models, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("x\n"))
    assert run("generate", "-", "--max-new-tokens", "2")[1] == "yz\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n"))
    assert run("generate", "-")[0] == 2
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe"), encoding="utf-8"))
    status, _, err = run("generate", "-")
    assert status == 2
    assert "UTF-8" in err


def test_ctrl_c_keeps_what_was_printed(models: Models, run: Run) -> None:
    def impatient(history: Sequence[int]) -> Vector:
        if len(history) > 12:
            raise KeyboardInterrupt
        return after(1)(history)

    models.distribution = impatient
    status, out, err = run("generate", "a", "--drafters", "none")
    assert (status, out, err) == (130, "bcdefghijklm\n", "")


def test_a_faulty_drafter_is_reported_and_the_text_stands(
    models: Models, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: object, jobs: object) -> None:
        raise RuntimeError("out of ideas")

    monkeypatch.setattr(SimDrafter, "draft", broken)
    status, out, err = run(*FIFTY, "--drafters", "ngram", "--policy", "static-5")
    assert (status, out) == (0, TEXT + "\n")
    assert err == "warning: ngram: RuntimeError: out of ideas\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--drafters", "ngrm"], "unknown drafter 'ngrm': did you mean ngram?"),
        (["--drafters", "ngram?mim=2"], "ngram has no option 'mim'"),
        (["--drafters", "zoo:genral"], "unknown model 'zoo:genral'"),
        (["--drafters", "missing.gguf"], "'missing.gguf' does not exist"),
        (["--policy", "ucb2"], "unknown policy 'ucb2': did you mean ucb1?"),
        (["--policy", "static-4?drafter=foo"], "drafter=foo: choose from"),
        (["--dtype", "int3"], "unknown dtype 'int3'"),
        (["--state", "missing/x.json"], "state file missing/x.json would be in "),
    ],
)
def test_wrong_names_are_refused_before_pytorch_is_imported(
    arguments: list[str], message: str, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stages(begin: str) -> None:
        raise AssertionError(begin)

    monkeypatch.setattr("draftwise.cli.options.stages", stages)
    assert message in refused("generate", "a", *arguments)


def test_names_are_checked_without_pytorch() -> None:
    code = (
        "import sys; from draftwise.drafters import names; from draftwise.policies import catalogue; "
        "from draftwise.state import cached; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


# -- --explain: why the policy auto chose what it chose -----------------------------------------------------


def test_a_stretch_says_what_was_played_and_what_each_drafter_promised() -> None:
    arms = (Arm("none", 0), Arm("a", 4))
    reasons = [
        Reason(
            0, 100.0, arms[1], (Candidate(0, 4, 2.0, 0.002, 1.8), Candidate(1, 1, 0.5, 0.001, 0.4)), False
        ),
        Reason(5, 200.0, arms[1], (Candidate(0, 4, 1.0, 0.004, 0.2),), False),
        Reason(20, 50.0, arms[0], (), True),
    ]
    assert list(rows(reasons, ["a", "b"])) == [
        ["0-15", "150", "a:4 x2", "1.5 for 3.0 ms: +1.0", "0.5 for 1.0 ms: +0.4"],
        ["16-31", "50", "off x1", "-", "-"],
    ]


def test_reasons_go_to_standard_error_after_the_text(run: Run) -> None:
    ask = ["generate", "la la la la la la", "--drafters", "ngram", "--max-new-tokens", "24"]
    _, out, err = run(*ask, "--explain", "--quiet")
    assert out == run(*ask)[1]
    lines = err.strip().splitlines()
    heads = ["tokens", "tokens/s", "played", "ngram (tokens for time: worth in tokens)"]
    assert re.split(r"  +", lines[0]) == heads and lines[1].startswith("0-15")


def test_a_draft_that_is_tried_promises_nothing() -> None:
    arm, tried = Arm("a", 1), Candidate(0, 1, 0.8, 0.0, 2.3, trial=True)
    first = Reason(0, 100.0, arm, (tried,), False)
    assert list(rows([first], ["a"])) == [["0-15", "100", "a:1 x1", "being tried"]]
    then = Reason(1, 100.0, arm, (Candidate(0, 1, 0.8, 0.002, 0.6),), False)
    assert [row[-1] for row in rows([first, then], ["a"])] == ["0.8 for 2.0 ms: +0.6"], "trials are no mean"
