"""An executor of your own: it hands down every pass of the target, and counts them by kind.

Shows the two methods that say who runs a pass. Takes some 10 seconds on a CPU.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from draftwise import Decoder
from draftwise.models.runner.passes import Executor, PassInput, PassOutput


class Counting(Executor):
    """Counts the passes that another executor runs, by kind."""

    def __init__(self, inner: Executor) -> None:
        self.inner, self.kind, self.buffers = inner, inner.kind, inner.buffers
        self.passes: Counter[str] = Counter()

    def try_run(self, runner: Any, given: PassInput) -> PassOutput | None:
        """Count what it runs at once."""
        if output := self.inner.try_run(runner, given):
            self.passes[output.info.kind] += 1
        return output

    def executor_for(self, runner: Any, given: PassInput) -> Executor:
        """Count what another one runs."""
        executor = self.inner.executor_for(runner, given)
        self.passes[executor.kind] += 1
        return executor


def main() -> None:
    """Decode with it."""
    decoder = Decoder.from_pretrained("zoo:target", drafters=["ngram"], compile="off")
    target: Any = decoder.loop.target
    counting = Counting(target.runner.executor)
    target.runner.use(counting)
    decoder.generate("la la la la", max_new_tokens=24)
    print("passes by kind:", dict(counting.passes))


if __name__ == "__main__":
    main()
