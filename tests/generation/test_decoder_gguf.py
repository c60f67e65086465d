"""GGUF files by name: as target and among the drafters, in text, chats and state files."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from draftwise import Decoder
from draftwise.errors import UserError
from draftwise.models.fingerprints import drafter_fingerprint, model_fingerprint
from draftwise.state.file import StateWarning
from tests.gguf import FLOAT32, Plain, bundled, stateful, tiny, watch_feeds

PROMPT = "Translate German to English: Ein Hund läuft am Strand."
TARGET, SMALL = bundled("zoo:target"), bundled("zoo:general")


def made(tokenizer: Any, target: str = TARGET, **options: Any) -> Decoder:
    return Decoder.from_pretrained(target, tokenizer=tokenizer, **{"drafters": [SMALL, "ngram"]} | options)


@pytest.fixture(scope="module")
def own(tokenizer: Any) -> list[int]:
    """What llama.cpp writes alone."""
    decoder = made(tokenizer, drafters="none")
    return Plain(TARGET, cache=FLOAT32).write(decoder.encode(PROMPT), 24)


@pytest.mark.parametrize(
    "drafters",
    [[SMALL, "ngram"], [f"gguf:{SMALL}?threads=1", "suffix"], ["zoo:general"], "none", [f"lm:{SMALL}"]],
    ids=["file", "options", "transformers", "none", "lm"],
)
def test_text_is_llama_cpps_own_whoever_drafts(tokenizer: Any, own: list[int], drafters: Any) -> None:
    policy = "none" if drafters == "none" else "static-4"
    out = made(tokenizer, drafters=drafters, policy=policy).generate(PROMPT, max_new_tokens=24, eos=())
    assert out.token_ids == own
    assert all(not r.fault for r in out.rounds)
    assert any(r.accepted for r in out.rounds) == (drafters != "none")


def test_a_gguf_file_drafts_for_a_transformers_model(decoder: Any) -> None:
    plain = decoder.generate(PROMPT, max_new_tokens=24)
    mixed = Decoder.from_pretrained("zoo:target", drafters=[SMALL], policy="static-4")
    out = mixed.generate(PROMPT, max_new_tokens=24)
    assert out.token_ids == plain.token_ids and any(r.accepted for r in out.rounds)


def test_exact_refuses_what_would_not_be(tokenizer: Any) -> None:
    for target in (f"gguf:{TARGET}?exact=false", f"gguf:{TARGET}?gpu_layers=2"):
        with pytest.raises(UserError, match="give device=cpu, and no exact=false"):
            made(tokenizer, target, exact=True)
    with pytest.raises(UserError, match="it keeps a state; leave exact out"):
        made(tokenizer, stateful("mamba"), exact=True, drafters="none")
    decoder = made(tokenizer, exact=True, device="cpu", drafters="none")
    assert decoder.generate(PROMPT, max_new_tokens=2).token_ids


def test_streams_and_samples(tokenizer: Any, own: list[int]) -> None:
    decoder = made(tokenizer)
    pieces = "".join(piece.text for piece in decoder.stream(PROMPT, max_new_tokens=24, eos=()))
    assert pieces == decoder.last.text == tokenizer.decode(own, skip_special_tokens=True)
    one, two = (decoder.generate(PROMPT, n=3, temperature=0.9, seed=4, max_new_tokens=12) for _ in range(2))
    assert len({tuple(sample.token_ids) for sample in one.samples}) > 1
    assert len(two.samples) == 3


def test_a_chat_reads_only_what_is_new(tokenizer: Any) -> None:
    decoder = made(tokenizer)
    fed = watch_feeds(decoder.loop.target)
    chat = decoder.chat()
    list(chat.send(PROMPT, max_new_tokens=16))
    fed.clear()
    list(chat.send("And now?", max_new_tokens=4))
    assert fed[0] < 30
    chat.close()


def test_a_state_file_belongs_to_the_file(tokenizer: Any, tmp_path: Path) -> None:
    state = tmp_path / "learned.json"
    made(tokenizer, state=state, policy="tapout-seq-ucb1").generate(PROMPT, max_new_tokens=16)
    copy = str(shutil.copy(TARGET, tmp_path / Path(TARGET).name))
    assert made(tokenizer, copy, state=state, policy="tapout-seq-ucb1").state.load()  # type: ignore[union-attr]
    with pytest.warns(StateWarning, match="another target"):
        made(tokenizer, SMALL, drafters=[SMALL, "ngram"], state=state, policy="tapout-seq-ucb1")


def test_fingerprints_are_those_of_the_weights() -> None:
    assert drafter_fingerprint(f"gguf:{SMALL}?threads=2") == model_fingerprint(SMALL)
    assert model_fingerprint(SMALL) != model_fingerprint(TARGET)


def test_what_a_file_cannot_do_is_refused(tokenizer: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no vocabulary"):
        Decoder.from_pretrained(TARGET)
    with pytest.raises(UserError, match="dtype=bfloat16"):
        made(tokenizer, dtype="bfloat16")
    with pytest.raises(UserError, match="hidden states"):
        made(tokenizer, drafters=["early-exit?layers=4"])
    with pytest.raises(
        UserError, match="a GGUF target reads no trees of drafted tokens, and the policy draft-all"
    ):
        made(tokenizer, drafters=["ngram", "suffix"], policy="draft-all")
    with pytest.raises(UserError, match="23 tokens and no vocabulary"):
        made(tokenizer, drafters=[tiny()])
    with pytest.raises(UserError, match=r"nothere\.gguf' does not exist"):
        made(tokenizer, drafters=["nothere.gguf"])
    with pytest.raises(UserError, match="no option 'contxt'"):
        made(tokenizer, f"{TARGET}?contxt=5")
    with pytest.raises(UserError, match="no path"):
        made(tokenizer, "gguf:")


def damaged(path: Path, head: bytes) -> str:
    path.write_bytes(head + Path(SMALL).read_bytes()[len(head) : 60_000])
    return str(path)


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (b"", "llama.cpp cannot read"),
        (b"GGML", "is not a GGUF file"),
        (b"GGUF\x09\x00\x00\x00", "has version 9"),
        (b"GGUF\x00\x00\x00\x03", "big-endian"),
    ],
    ids=["cut", "magic", "version", "endian"],
)
def test_a_damaged_file_is_refused_in_one_line(
    tokenizer: Any, tmp_path: Path, head: bytes, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match=said) as caught:
        made(tokenizer, damaged(tmp_path / "bad.gguf", head))
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_a_file_of_a_few_bytes_is_refused(tokenizer: Any, tmp_path: Path) -> None:
    short = tmp_path / "short.gguf"
    short.write_bytes(b"GGUF\x03\x00\x00\x00")
    with pytest.raises(UserError, match="ends after 8 bytes"):
        made(tokenizer, str(short))
    with pytest.raises(UserError, match="is a folder"):
        made(tokenizer, f"gguf:{tmp_path}")


def test_llama_cpp_is_silent(tokenizer: Any, capfd: pytest.CaptureFixture[str]) -> None:
    made(tokenizer).generate(PROMPT, max_new_tokens=4)
    assert capfd.readouterr() == ("", "")
