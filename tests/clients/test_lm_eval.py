"""lm-eval: the `hf` model with the method, and a server, have the same answers and score as `hf` without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

lm_eval = pytest.importorskip("lm_eval")

QUESTIONS = [
    "The capital of France is",
    "Once upon a time, there was a little girl who",
    "One, two, three,",
    "Question: what is water?\nAnswer:",
    "The sea is",
    "Expensive Sir,",
]


def answers(small: Any, tokenizer: Any, task: Any, batch: int, **more: Any) -> Any:
    """Every answer and the score of a task."""
    from lm_eval.models.huggingface import HFLM

    class Hosted(HFLM):  # type: ignore[misc]
        def _model_generate(self, context: Any, max_length: int, stop: list[str], **kwargs: Any) -> Any:
            return super()._model_generate(context, max_length, stop, **kwargs, **more)

    model = Hosted(pretrained=small, tokenizer=tokenizer, batch_size=batch, device="cpu", max_length=256)
    return evaluated(model, task)


def evaluated(model: Any, task: Any) -> Any:
    """Every answer and the score of a model."""
    from lm_eval.tasks import TaskManager

    found = lm_eval.simple_evaluate(
        model, tasks=[task], bootstrap_iters=0, task_manager=TaskManager(include_defaults=False)
    )
    metric = "acc" if task["output_type"] == "multiple_choice" else "exact_match"
    return (
        [sample["filtered_resps"] for sample in found["samples"]["small"]],
        found["results"]["small"][f"{metric},none"],
    )


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory, small: Any, tokenizer: Any) -> dict[str, Any]:
    """Answers up to the end of a line or a sentence; half of the wanted ones are what the model says."""
    import json

    folder: Path = tmp_path_factory.mktemp("task")
    lines = []
    for i, question in enumerate(QUESTIONS):
        ids = tokenizer(question, return_tensors="pt").input_ids
        said = tokenizer.decode(small.generate(ids, max_new_tokens=24, do_sample=False)[0, ids.shape[1] :])
        said = said.split("\n")[0].split(".")[0]
        lines.append(json.dumps({"question": question, "answer": said if i % 2 else "never"}))
    (folder / "small.jsonl").write_text("\n".join(lines))
    return {
        "task": "small",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(folder / "small.jsonl")}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["\n", "."], "max_gen_toks": 24, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
    }


@pytest.mark.parametrize("batch", [1, 3, 4])
def test_the_score_is_the_same(
    small: Any, tokenizer: Any, drafted: Any, task: dict[str, Any], batch: int
) -> None:
    own = answers(small, tokenizer, task, batch)
    assert 0 < own[1] < 1
    assert answers(small, tokenizer, task, batch, custom_generate=drafted) == own


@pytest.fixture(scope="module")
def served() -> Iterator[Any]:
    """lm-eval's client of a server of the same model, whose drafters are mostly wrong."""
    pytest.importorskip("fastapi")
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    from draftwise import Decoder
    from draftwise.models.load import locate
    from studies.serve.local import serving

    decoder = Decoder.from_pretrained("zoo:general", drafters=["ngram", "suffix"], policy="random")
    with serving(decoder, "zoo:general", batch=4) as (url, _):
        yield LocalCompletionsAPI(
            model="zoo:general",
            base_url=f"{url}/v1/completions",
            tokenizer_backend="huggingface",
            tokenizer=str(locate("zoo:general")),
            max_length=256,
            num_concurrent=3,
            max_retries=1,
        )


def test_a_server_has_the_score_of_the_model_itself(
    small: Any, tokenizer: Any, task: dict[str, Any], served: Any
) -> None:
    own = answers(small, tokenizer, task, 1)
    assert 0 < own[1] < 1
    assert evaluated(served, task) == own


def test_a_server_finds_the_same_choices_likely(
    small: Any, tokenizer: Any, task: dict[str, Any], served: Any
) -> None:
    choices = {"output_type": "multiple_choice", "doc_to_choice": [" the", " a little girl", "."]}
    more: Any = {"doc_to_target": 0, "metric_list": [{"metric": "acc"}], "generation_kwargs": None}
    chosen = {k: v for k, v in (task | choices | more).items() if v is not None}
    own, found = answers(small, tokenizer, chosen, 1), evaluated(served, chosen)
    assert 0 < own[1] < 1 and found[1] == own[1]
    for a, b in zip(own[0], found[0], strict=True):
        for (mine, greedy), (theirs, same) in zip(a, b, strict=True):
            assert theirs == pytest.approx(mine, abs=1e-3) and same == greedy
