"""The time that a training may take, over all its runs."""

from __future__ import annotations

import json
from pathlib import Path
from time import monotonic

ANSWERS = 0.4  # the share of the time that the target may spend on answers
STEPS = 0.95  # and until when steps are taken; measuring takes the rest


class Budget:
    """Counts the minutes of a training; a resumed run continues to count. 0 minutes are no limit."""

    def __init__(self, minutes: float, file: Path) -> None:
        self.seconds, self.file, self.began = 60.0 * minutes, file, monotonic()
        try:
            self.before = float(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else 0.0
        except (OSError, ValueError, TypeError):
            self.before = 0.0  # a damaged count costs time, not the training

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit."""
        return self.seconds > 0

    @property
    def used(self) -> float:
        """The share of the time that is over; 0 without a limit."""
        return self._spent() / self.seconds if self.is_limited else 0.0

    def left(self, share: float) -> float:
        """Return the seconds until a share of the time is over; 0 without a limit."""
        return max(0.0, share * self.seconds - self._spent())

    def save(self) -> None:
        """Write the time spent so far, for a run that resumes."""
        if self.is_limited:
            part = self.file.with_name(f"{self.file.name}.part")
            part.write_text(json.dumps(round(self._spent(), 1)), encoding="utf-8")
            part.replace(self.file)

    def _spent(self) -> float:
        return self.before + monotonic() - self.began
