"""TRL: a GRPO rollout with the method, while training moves the weights between one rollout and the next."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

trl = pytest.importorskip("trl")


@pytest.mark.filterwarnings("ignore")
def test_rollouts_are_those_of_plain_decoding(
    small: Any, tokenizer: Any, drafted: Any, tmp_path: Path
) -> None:
    """Each of the rollouts is made both ways from the weights of that moment; of each distribution only the
    most likely token is drawn, so that they can be compared."""
    from datasets import Dataset

    model, said = copy.deepcopy(small), copy.deepcopy(tokenizer)
    said.padding_side = "left"
    generate, weights = model.generate, []

    def both(*args: Any, **kwargs: Any) -> Any:
        out = generate(*args, **kwargs, custom_generate=drafted)
        assert torch.equal(out, generate(*args, **kwargs))
        weights.append(float(model.lm_head.weight.detach().double().norm()))
        return out

    model.generate = both
    trl.GRPOTrainer(
        model=model,
        processing_class=said,
        reward_funcs=lambda completions, **_: [float(len(set(c)) + i) for i, c in enumerate(completions)],
        train_dataset=Dataset.from_dict({"prompt": ["One, two,", "Once upon a time, there"]}),
        args=trl.GRPOConfig(
            output_dir=str(tmp_path),
            max_steps=3,
            per_device_train_batch_size=4,
            num_generations=2,
            max_completion_length=16,
            learning_rate=1e-2,
            top_k=1,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            seed=0,
        ),
    ).train()
    assert len(weights) == 3 and weights[1] != weights[2]  # the first step of a warm-up may be of length zero
