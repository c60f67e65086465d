"""How often `auto` looks at a batch in which no draft pays: looking takes time as well."""

from __future__ import annotations

from dataclasses import dataclass

from .passes import size_class

PATIENCE = 4  # looks without a draft for each further round of rest
LONGEST = 7  # rounds of rest


@dataclass(slots=True)
class Rest:
    """Counts the looks in a row after which nothing was drafted: the more of them, the rarer they become.

    With 16 requests or more there are up to `LONGEST` rounds between two looks, with fewer half as many as
    requests. A batch of another size class is looked at again.
    """

    at: int = -1
    idle: int = 0
    left: int = 0
    drafted: bool = True

    def rests(self, batch: int) -> bool:
        """Whether this round is left out; if not, `drafted` is to say whether anything was."""
        if size_class(batch) != self.at:
            self.at, self.idle, self.left, self.drafted = size_class(batch), 0, 0, True
        if self.left > 0:
            self.left -= 1
            return True
        self.idle = 0 if self.drafted else self.idle + 1
        self.left, self.drafted = min(self.idle // PATIENCE, LONGEST, batch // 2), False
        return False
