"""Speech: the own `generate` of Whisper, with its windows and fallbacks, with drafts."""

from __future__ import annotations

import inspect
from random import Random
from typing import Any

import pytest
import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    StoppingCriteriaList,
)
from transformers.models.whisper.generation_whisper import WhisperGenerationMixin

from draftwise import UserError, transformers_generate
from draftwise.core.drafts import Draft, Job
from tests.core.turns import Stateless

from .prompted import VOCAB, picture, whisper

FRAMES, WINDOW = 80, 32  # two windows and a half
NOTIMES = 50  # after it, the tokens of timestamps
NEW = 8


class Echo(Stateless):
    """Drafts the next tokens of known texts, of which some are spoilt: whatever window they belong to."""

    def __init__(self, name: str, texts: list[list[int]], spoil: float) -> None:
        self.name_or_path, self.texts, self.spoil, self.random = name, texts, spoil, Random(2)

    def one(self, job: Job) -> Draft:
        """What follows the last two tokens in any of the texts."""
        last = job.request.tokens[-2:]
        for text in self.texts:
            for at in range(len(text) - 2):
                if text[at : at + 2] == last:
                    rest = text[at + 2 :][: job.length]
                    return Draft.chain([
                        t if self.random.random() > self.spoil else (t + 1) % VOCAB for t in rest
                    ])  # fmt: skip
        return Draft()


def adaptive(texts: list[list[int]]) -> Any:
    team = [Echo("good", texts, 0.0), Echo("bad", texts, 0.9), "ngram"]
    return transformers_generate(drafters=team, policy="random", tokenizer=object())


@pytest.fixture(scope="module")
def model() -> Any:
    """With the settings of a published multilingual one, in a vocabulary of 64."""
    made = whisper(3)
    settings: dict[str, Any] = {
        "eos_token_id": 2, "no_timestamps_token_id": NOTIMES, "is_multilingual": True,
        "max_initial_timestamp_index": 9, "lang_to_id": {"<|en|>": 45, "<|de|>": 46},
        "task_to_id": {"transcribe": 47, "translate": 48}, "prev_sot_token_id": 44, "suppress_tokens": [7],
        "begin_suppress_tokens": [9], "max_length": None, "max_new_tokens": NEW,
        "language": "en", "task": "transcribe",
    }  # fmt: skip
    for name, value in settings.items():
        setattr(made.generation_config, name, value)
    return made


def heard(rows: int = 1, frames: int = WINDOW) -> torch.Tensor:
    return picture(5, rows, 8, frames)


class Own(LogitsProcessor):
    """Makes every other token less likely."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.clone()
        scores[:, ::2] -= 2.0
        return scores


def odd(row: int, ids: torch.Tensor) -> list[int]:
    return list(range(3, 40, 2))


OBEYED, REFUSED, IDLE = "obeyed", "refused", "idle"
LONG: dict[str, Any] = {"input_features": heard(1, FRAMES)}
FALLBACK = {"temperature": (0.0, 0.7, 1.1), "logprob_threshold": -0.01}
# Every parameter of Whisper's own `generate`: what becomes of it, and an example.
PARAMETERS: dict[str, tuple[str, dict[str, Any]]] = {
    "input_features": (OBEYED, {}),
    "generation_config": (OBEYED, {"generation_config": None}),
    "logits_processor": (OBEYED, {"logits_processor": LogitsProcessorList([Own()])}),
    "stopping_criteria": (
        OBEYED,
        {"stopping_criteria": StoppingCriteriaList([MaxLengthCriteria(6)])},
    ),
    "prefix_allowed_tokens_fn": (OBEYED, {"prefix_allowed_tokens_fn": odd}),
    "synced_gpus": (REFUSED, {"synced_gpus": True}),
    "return_timestamps": (OBEYED, {"return_timestamps": True}),
    "task": (OBEYED, {"task": "translate"}),
    "language": (OBEYED, {"language": "de"}),
    "is_multilingual": (OBEYED, {"is_multilingual": True}),
    "prompt_ids": (OBEYED, {"prompt_ids": torch.tensor([44, 11, 12])}),
    "prompt_condition_type": (
        OBEYED,
        LONG
        | {"prompt_ids": torch.tensor([44, 11]), "condition_on_prev_tokens": True}
        | {"prompt_condition_type": "all-segments"},
    ),
    "condition_on_prev_tokens": (OBEYED, LONG | {"condition_on_prev_tokens": True}),
    "temperature": (OBEYED, FALLBACK | {"logprob_threshold": -100.0, "temperature": 0.8}),
    "compression_ratio_threshold": (OBEYED, FALLBACK | {"compression_ratio_threshold": 0.1}),
    "logprob_threshold": (OBEYED, LONG | FALLBACK),
    "no_speech_threshold": (OBEYED, LONG | FALLBACK | {"no_speech_threshold": 0.001}),
    "num_segment_frames": (IDLE, {"num_segment_frames": 16}),
    "attention_mask": (
        OBEYED,
        {
            "input_features": heard(2, FRAMES),
            "attention_mask": (torch.arange(FRAMES) < torch.tensor([[FRAMES], [40]])).long(),
        },
    ),
    "time_precision": (OBEYED, LONG | {"time_precision": 0.04, "return_segments": True}),
    "time_precision_features": (OBEYED, LONG | {"time_precision_features": 0.02, "return_segments": True}),
    "return_token_timestamps": (REFUSED, {"return_token_timestamps": True}),
    "return_segments": (OBEYED, LONG | {"return_segments": True}),
    "return_dict_in_generate": (OBEYED, {"return_dict_in_generate": True, "output_scores": True}),
    "force_unique_generate_call": (OBEYED, LONG | {"force_unique_generate_call": True}),
    "monitor_progress": (OBEYED, LONG | {"monitor_progress": lambda done: None}),
}


def test_every_parameter_is_in_the_table() -> None:
    own = set(inspect.signature(WhisperGenerationMixin.generate).parameters)
    assert own - {"self", "kwargs"} == set(PARAMETERS)


def written(model: Any, **given: Any) -> Any:
    torch.manual_seed(3)
    return model.generate(**{"input_features": heard(), "attention_mask": None} | given)


def tokens(out: Any) -> torch.Tensor:
    found: torch.Tensor = out if isinstance(out, torch.Tensor) else out["sequences"]
    return found


def spans(out: Any) -> list[tuple[float, float, list[int]]]:
    """Segments with their seconds."""
    rows = out["segments"] if isinstance(out, dict) and "segments" in out else []
    return [(float(s["start"]), float(s["end"]), s["tokens"].tolist()) for row in rows for s in row]


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.filterwarnings("ignore")
def test_parameters(model: Any, name: str) -> None:
    """Every one is obeyed, refused, or without effect on plain decoding as well."""
    verdict, example = PARAMETERS[name]
    if name == "generation_config":
        example = {name: model.generation_config}
    if name == "return_token_timestamps":
        model.generation_config.alignment_heads = [[0, 0]]
    if verdict == REFUSED:
        with pytest.raises(UserError, match="synced_gpus" if name == "synced_gpus" else "output_attentions"):
            written(model, **example, custom_generate=adaptive([[3]]))
        return
    own = written(model, **example)
    out = written(model, **example, custom_generate=adaptive(tokens(own).tolist()))
    assert torch.equal(tokens(out), tokens(own)) and spans(out) == spans(own) and type(out) is type(own)
    if verdict == IDLE:
        assert torch.equal(tokens(own), tokens(written(model)))


MATTERS = ("logits_processor", "stopping_criteria", "prefix_allowed_tokens_fn", "return_timestamps", "task",
           "language", "prompt_ids", "temperature", "compression_ratio_threshold")  # fmt: skip


@pytest.mark.parametrize("name", MATTERS)
@pytest.mark.filterwarnings("ignore")
def test_examples_would_show_what_is_dropped(model: Any, name: str) -> None:
    own, plain = tokens(written(model, **PARAMETERS[name][1])), tokens(written(model))
    assert own.shape != plain.shape or not torch.equal(own, plain)


@pytest.mark.filterwarnings("ignore")
def test_long_sound_takes_several_windows(model: Any) -> None:
    """Each is a call of its own, whose drafts come from a model, too."""
    own = written(model, **LONG, return_segments=True)
    windows: list[Any] = []
    written(model, **LONG, monitor_progress=windows.append)
    assert len(windows) > 1 and len(set(tokens(own)[0].tolist())) > 4
    helpers = transformers_generate(drafters=[whisper(5, layers=1)], policy="random", tokenizer=object())
    out = written(model, **LONG, return_segments=True, custom_generate=helpers)
    assert torch.equal(tokens(out), tokens(own)) and spans(out) == spans(own)


@pytest.mark.filterwarnings("ignore")
def test_an_assistant_is_refused(model: Any) -> None:
    with pytest.raises(UserError, match="assistant_model"):
        written(model, assistant_model=whisper(5, layers=1), custom_generate=adaptive([[3]]))
