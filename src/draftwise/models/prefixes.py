"""Keys and values of texts that have ended, kept for texts that begin alike."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

Parts = dict[tuple[int | str, int | str], Tensor]
"""What a model holds of some tokens: tensors by name, each of shape (tokens, ...)."""

LEAST = 16  # tokens: fewer are read as fast as they are copied
OVERHEAD = 512  # bytes of a tensor beside its numbers


@dataclass(slots=True, eq=False)
class Piece:
    """Some tokens that follow those of the pieces above, and what a model holds of them."""

    above: Piece | None
    tokens: list[int] = field(default_factory=list)
    parts: Parts = field(default_factory=dict)
    below: dict[int, Piece] = field(default_factory=dict)  # by first token

    @property
    def bytes(self) -> int:
        """Memory of its tensors."""
        return sum(OVERHEAD + t.numel() * t.element_size() for t in self.parts.values())

    def same(self, tokens: Sequence[int], at: int) -> int:
        """How many of its tokens `tokens` has from `at` on."""
        if self.tokens == tokens[at : at + len(self.tokens)]:
            return len(self.tokens)
        pairs = enumerate(zip(self.tokens, tokens[at:], strict=False))
        return next((i for i, (mine, other) in pairs if mine != other), len(tokens) - at)


class Prefixes:
    """What several models keep of texts that have ended, within one bound of `limit` bytes.

    The texts of a model form a radix tree, so that a beginning that several have is kept once. Beyond the
    bound the end that has not been used for the longest time is dropped first. Models with recurrent states
    keep nothing, since a state is that of a whole text; nor do GGUF files.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.bytes = limit, 0
        # From the longest unused to the latest used one. A piece is always later than those below it.
        self.pieces: OrderedDict[Piece, None] = OrderedDict()

    def touch(self, path: Sequence[Piece]) -> None:
        """Mark pieces as used, given from the root down."""
        for piece in reversed(path):
            self.pieces[piece] = None
            self.pieces.move_to_end(piece)

    def trim(self) -> None:
        """Drop what is over the bound."""
        while self.bytes > self.limit:
            piece, _ = self.pieces.popitem(last=False)
            self.bytes -= piece.bytes
            if piece.above is not None:
                del piece.above.below[piece.tokens[0]]


class Tree:
    """The texts of one model, by a mark: texts with different marks have nothing in common."""

    def __init__(self, whole: Prefixes) -> None:
        self.whole = whole
        self.roots: dict[Hashable, Piece] = {}
        self.most = -1  # tokens that fit into the bound; known when the first have been copied

    def find(self, mark: Hashable, tokens: Sequence[int]) -> list[tuple[Piece, int]]:
        """The pieces that a text begins with, from the first token on, and how many tokens of each."""
        found: list[tuple[Piece, int]] = []
        piece, at = self.roots.get(mark), 0
        while piece is not None and at < len(tokens):
            piece = piece.below.get(tokens[at])
            if piece is not None:
                same = piece.same(tokens, at)
                found.append((piece, same))
                at += same
                if same < len(piece.tokens):
                    break
        return found

    def add(self, mark: Hashable, tokens: Sequence[int], take: Callable[[int, int], Parts]) -> None:
        """Keep the tokens of a text that has ended; `take(start, end)` copies what is held of some.

        A text that does not fit is cut.
        """
        whole, path = self.whole, list[Piece]()
        if self.most >= 0:
            tokens = tokens[: self.most]
        found = self.find(mark, tokens)
        for piece, same in found:
            path.append(piece if same == len(piece.tokens) else self._split(piece, same))
        at = sum(same for _, same in found)
        if len(tokens) - at >= LEAST:
            above = path[-1] if path else self.roots.setdefault(mark, Piece(None))
            piece = Piece(above, list(tokens[at:]), take(at, len(tokens)))
            self._measure(piece)
            if piece.bytes > whole.limit:  # the first text tells how large a token is
                piece.tokens = piece.tokens[: self.most]
                piece.parts = {name: part[: self.most].clone() for name, part in piece.parts.items()}
            if piece.tokens:
                above.below[tokens[at]] = piece
                path.append(piece)
                whole.bytes += piece.bytes
        whole.touch(path)
        whole.trim()

    def _measure(self, piece: Piece) -> None:
        fixed = OVERHEAD * len(piece.parts)
        each = max(1, -(-(piece.bytes - fixed) // len(piece.tokens)))
        self.most = max(0, self.whole.limit - fixed) // each

    def clear(self) -> None:
        """Forget all texts."""
        for root in self.roots.values():
            waiting = list(root.below.values())
            while waiting:
                piece = waiting.pop()
                self.whole.bytes -= piece.bytes
                del self.whole.pieces[piece]
                waiting += piece.below.values()
        self.roots.clear()

    def _split(self, piece: Piece, length: int) -> Piece:
        """Divide a piece after its first tokens; returns the upper half.

        Both halves are copies, so that the memory of one is free without the other.
        """
        begun = {name: part[:length].clone() for name, part in piece.parts.items()}
        upper = Piece(piece.above, piece.tokens[:length], begun)
        assert piece.above is not None  # only the root has nothing above, and it has no tokens
        self.whole.bytes -= piece.bytes
        piece.above.below[piece.tokens[0]] = upper
        piece.tokens = piece.tokens[length:]
        piece.parts = {name: part[length:].clone() for name, part in piece.parts.items()}
        piece.above, upper.below[piece.tokens[0]] = upper, piece
        self.whole.bytes += piece.bytes + upper.bytes
        return upper
