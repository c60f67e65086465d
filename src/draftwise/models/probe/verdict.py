"""The result of probing a model, in a form that can be saved."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..runner import ModelRunner
from ..runner.states import StateRunner
from ..runner.traits import Traits


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a model may be run so that its text stays exact.

    `together`: several texts in one pass. `guided`: position ids and attention masks are passed in; otherwise
    the model computes its own. `stateful`: it keeps states that cannot rewind, `carried` in the argument of
    this name or, if "", in its cache or its modules; with `steps` it reads one token a pass, and with `free`
    the steps of its layers are limited in the prompt alone. `why` names the first way that disagreed. `noise`
    is how far its logits move with the width of a pass if rounding does not explain it.
    """

    together: bool = True
    guided: bool = True
    why: str = ""
    stateful: bool = False
    carried: str = ""
    steps: bool = False
    free: bool = False
    noise: float = 0.0

    @classmethod
    def of(cls, kept: object) -> Verdict | None:
        """The verdict saved as JSON; None if it is not one."""
        like = asdict(cls())
        if not isinstance(kept, dict) or kept.keys() != like.keys():
            return None
        return cls(**{name: type(value)(kept[name]) for name, value in like.items()})

    def rows(self, model: Any, traits: Traits | None = None) -> ModelRunner:
        """A runner that reads in this way."""
        rows: ModelRunner
        if self.stateful:
            rows = StateRunner(model, traits=traits, carried=self.carried, steps=self.steps, free=self.free)
        else:
            rows = ModelRunner(model, traits=traits)
        rows.together, rows.guided = self.together, self.guided
        if isinstance(rows, StateRunner) and not self.carried:
            rows.find_states()
        return rows
