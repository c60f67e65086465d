from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from draftwise.data import spec_bench
from draftwise.measure.bench.child import Child, ChildError
from draftwise.measure.bench.contender import Generation, Item
from draftwise.measure.bench.peers import Peers, Unavailable
from draftwise.models.gguf.export import write_gguf

from .conftest import sim_models

# Answers with the prompt backwards; 9 in a prompt is an error, 8 the end of the process.
ECHO = """
import json, sys
hello = json.loads(sys.stdin.readline())
print(json.dumps({"error": "no such file"} if hello.get("bad") else {"ready": hello}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if 8 in asked["ids"]:
        sys.exit(3)
    times = {"seconds": 0.5, "ttft_s": 0.25}
    text = {"tokens": asked["ids"][::-1] + asked["eos"], "rounds": 2, "drafted": 4} | times
    print(json.dumps({"error": "cannot"} if 9 in asked["ids"] else text | {"asked": asked}), flush=True)
"""
COMMAND = [sys.executable, "-c", ECHO]
LAW = Generation(6, 0.7, seed=2)


def item(*ids: int) -> Item:
    return Item(1, "q", "x", ids)


def test_a_text_comes_back_with_its_own_time() -> None:
    child = Child("engine:mode", COMMAND, {"file": "f"}, eos=frozenset([7]))
    assert (child.engine, child.ready, child.max_batch) == ("engine", {"file": "f"}, 1)
    (text,) = child.decode([item(1, 2, 3)], LAW)
    assert text.tokens == (3, 2, 1, 7)
    assert (text.seconds, text.rounds, text.drafted, text.accepted) == (0.5, 2, 4, 2)
    assert (text.ttft_s, text.first_tokens) == (0.25, 1)
    child.close()
    assert child.process.returncode == 0


def test_what_goes_wrong_there_is_said_here() -> None:
    with pytest.raises(ChildError, match="no such file"):
        Child("engine:mode", COMMAND, {"bad": True}, eos=frozenset())
    for code in ("raise SystemExit(1)", "print('{\"rea', end=''); exit(1)"):  # the last within its answer
        with pytest.raises(ChildError, match="ended with status 1"):
            Child("engine:mode", [sys.executable, "-c", code], {}, eos=frozenset())
    child = Child("engine:mode", COMMAND, {}, eos=frozenset())
    with pytest.raises(ChildError, match="cannot"):
        child.decode([item(9)], LAW)
    assert child.decode([item(1)], LAW)[0].tokens == (1,), "an error is not the end"
    with pytest.raises(ChildError, match="the process of engine:mode ended with status 3"):
        child.decode([item(8)], LAW)
    with pytest.raises(ChildError, match="ended with status 3"):
        child.decode([item(1)], LAW)
    child.close()


# -- llama.cpp --------------------------------------------------------------------------------------


def test_a_file_that_cannot_be_read_makes_the_peer_absent(tmp_path: Path) -> None:
    peers = Peers(sim_models(), "zoo:target", [], {})
    missing = "llama-cpp-python is not installed"
    with pytest.raises(Unavailable) as caught:
        peers.build(f"llamacpp:plain?file={tmp_path}/none.gguf")
    peers.close()
    assert (str(caught.value) == missing) is (find_spec("llama_cpp") is None)


@pytest.mark.skipif(find_spec("llama_cpp") is None, reason="llama-cpp-python is not installed")
def test_llamacpp_writes_the_same_text(plain_model: Any, tokenizer: Any, tmp_path: Path) -> None:
    """One way of drafting: `test_llamacpp` tries all of them in both loops, on a tiny model."""
    import torch

    path = tmp_path / "m.gguf"
    write_gguf(plain_model, path)
    options: dict[str, Any] = {"context": 512, "gpu_layers": 0, "threads": 1, "flash": "auto", "cache": "f16"}
    options |= {"loop": "fast", "lookup": 10, "ngram": 2}
    command = [sys.executable, "-m", "draftwise.measure.bench.llamacpp"]
    child = Child("llamacpp:lookup", command, {"file": str(path), **options}, eos=frozenset([2]))
    try:
        for question in spec_bench()[80:82]:
            chat = [{"role": "user", "content": question.text}]
            ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)[
                "input_ids"
            ]
            (text,) = child.decode([item(*ids)], Generation(24))
            own = plain_model.generate(torch.tensor([ids]), max_new_tokens=24, do_sample=False)
            assert list(text.tokens) == own[0, len(ids) :].tolist()
            assert (text.rounds == len(text.tokens)) is (text.accepted == 0)
            assert text.drafted > 0
        drawn = [child.decode([item(*ids)], Generation(12, 1.0, seed=s))[0].tokens for s in (1, 1, 2)]
        assert drawn[0] == drawn[1] != drawn[2]
    finally:
        child.close()
