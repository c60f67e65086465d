"""What goes into a forward pass, and what comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ...core.passes import PassInfo
from .drafts import DraftInput, DraftOutput, TreeInput, TreeLevel

States = dict[int, Tensor]
"""Hidden states of a pass by layer, shape (rows, width, size)."""


@dataclass(slots=True)
class PassInput:
    """Tokens that neighbouring rows of the KV cache read in one pass, after those that they hold.

    Attributes:
        row: The row of the first request.
        tokens: New tokens: `tokens[i]` are those of row `row + i`.
        logits_to_keep: How many of the pass's last positions have logits.
        slots: The length that the texts may grow to; 0 if that is unchanged.
        parents: Makes the last tokens of `tokens[i]` a tree, by their parents (-1 = the token before them):
            each has a slot of its own, its depth determines its position id, and it attends to its ancestors
            only. If there are more parents than tokens, the tokens extend a tree whose first nodes are the
            last in the row.
        model: Runs in place of the runner's own, perhaps some of its layers; other layers then store nothing.
        rope_lengths: Each text has the rotary frequencies of a text of so many tokens.
        is_guess: The texts end in tokens that may be taken back.
        states: What a head reads beside the tokens, shape (rows, width, size).
    """

    row: int
    tokens: Sequence[Sequence[int]]
    logits_to_keep: int
    slots: int = 0
    parents: Mapping[int, Sequence[int]] | None = None
    model: Any = None
    rope_lengths: Sequence[int] = ()
    is_guess: bool = False
    states: Tensor | None = None


@dataclass(slots=True)
class PassOutput:
    """Logits at the pass's last positions, shape (rows, logits_to_keep, vocabulary), and hidden states.

    Rows are padded on the right, so row i's own last position is `len(tokens[i]) - 1` counted from `width -
    logits_to_keep` for logits, and from 0 for `hidden_states`, which has the layers that the runner was asked
    for. `choices` are the most likely tokens (`distributions.top_tokens`) at the positions of the logits,
    where the pass has computed them, too.
    """

    logits: Tensor
    hidden_states: States
    info: PassInfo
    choices: Tensor | None = None


def join_texts(outputs: Sequence[PassOutput], texts: Sequence[Sequence[int]]) -> PassOutput:
    """Return passes over one text each as one pass over all."""
    rows = [(output, 0, len(text)) for output, text in zip(outputs, texts, strict=True)]
    logits = pad_sequence([output.logits[0] for output in outputs], batch_first=True)
    return PassOutput(logits, join_states(rows), join_infos([output.info for output in outputs]))


def join_pieces(outputs: Sequence[PassOutput]) -> PassOutput:
    """Return passes over the pieces of a text, whose logits were all kept, as one pass."""
    states = {
        layer: torch.cat([output.hidden_states[layer] for output in outputs], 1)
        for layer in outputs[0].hidden_states
    }
    logits = torch.cat([output.logits for output in outputs], 1)
    return PassOutput(logits, states, join_infos([output.info for output in outputs]))


def join_states(rows: Sequence[tuple[PassOutput | None, int, int]]) -> States:
    """Return the hidden states of several passes as those of one: of each text its pass, its row there, and
    its tokens, which are the last of that row."""
    layers = {layer: part for output, _, _ in rows if output for layer, part in output.hidden_states.items()}
    return {
        layer: pad_sequence(
            [
                part[0, :0] if output is None else output.hidden_states[layer][row, -width:]
                for output, row, width in rows
            ],
            batch_first=True,
        )
        for layer, part in layers.items()
    }


def join_infos(infos: Sequence[PassInfo]) -> PassInfo:
    return PassInfo(
        infos[-1].kind,
        sum(info.reread for info in infos),
        all(info.is_timed for info in infos),
    )


@dataclass(slots=True)
class PreparedPass:
    """The tensors of a pass that the cache has planned.

    `arguments` are the positions, masks and `logits_to_keep` for the model; `columns` is how many of the last
    positions need logits, of which the last `extra` are no token's.
    """

    ids: Tensor
    arguments: dict[str, Any]
    columns: int
    extra: int
    model: Any


class Executor:
    """Runs the passes of a model in one way, and hands those that it cannot run to another executor.

    `kind` names the way in `PassInfo`. `buffers` are the rows and slots of a KV cache that must not move
    while it is in use; None if it may grow.
    """

    kind = "eager"
    buffers: tuple[int, int] | None = None
    drafts = False  # whether `try_draft` may draft
    is_bound = False  # to one KV cache, so that no other runner may use it

    def try_run(self, runner: Any, given: PassInput) -> PassOutput | None:
        """Run a pass from its input; None if the runner is to prepare it."""
        return None

    def try_draft(self, runner: Any, given: DraftInput) -> DraftOutput | None:
        """Draft several tokens without a read of the device between; None if it cannot."""
        return None

    def try_trees(self, runner: Any, given: TreeInput) -> list[list[TreeLevel]] | None:
        """Draft trees without a read of the device between depths; None if it cannot."""
        return None

    def executor_for(self, runner: Any, given: PassInput) -> Executor:
        """Return whose `run` runs this pass: `runner.eager` where this one has no trees, hidden states or
        another model."""
        eager: Executor = runner.eager
        return eager

    def run(self, runner: Any, prepared: PreparedPass) -> tuple[Tensor, States]:
        """Run a prepared pass; returns the logits of at least its last `columns` positions, and states."""
        raise NotImplementedError
