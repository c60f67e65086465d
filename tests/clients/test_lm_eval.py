"""lm-eval: the `hf` model with the method has the same answers and score as without."""

from __future__ import annotations

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
    from lm_eval.tasks import TaskManager

    class Hosted(HFLM):  # type: ignore[misc]
        def _model_generate(self, context: Any, max_length: int, stop: list[str], **kwargs: Any) -> Any:
            return super()._model_generate(context, max_length, stop, **kwargs, **more)

    model = Hosted(pretrained=small, tokenizer=tokenizer, batch_size=batch, device="cpu", max_length=256)
    found = lm_eval.simple_evaluate(
        model, tasks=[task], bootstrap_iters=0, task_manager=TaskManager(include_defaults=False)
    )
    return (
        [sample["filtered_resps"] for sample in found["samples"]["small"]],
        found["results"]["small"]["exact_match,none"],
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
