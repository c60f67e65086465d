"""What a picture says when its data is not there."""

from __future__ import annotations


class Missing(Exception):
    """There is nothing to draw: `what` is not in the folder, and `remedy` is how to get it."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}: {remedy}")
        self.what, self.remedy = what, remedy


ROUNDS = "`draftwise bench` or `draftwise replay` with `--out`, which write `rounds.jsonl`"
ORACLE = "`draftwise oracle TRACE` with `--out` into this folder"
FIXED = "the same run with fixed arms beside the policy, such as `static-5` for each drafter"
