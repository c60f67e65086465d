"""Keys, values and hidden states of texts that have ended, kept for texts that begin alike."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable
from warnings import warn

import torch
from torch import Tensor

from ...errors import DraftwiseWarning, UserError, one_line
from .cache import RowCache
from .hidden_states import HiddenStates
from .runner import ModelRunner

Parts = dict[tuple[int | str, int | str], Tensor]
"""What a model holds of some tokens: tensors by name, each of shape (tokens, ...)."""

LEAST = 16  # tokens: fewer are read as fast as they are copied
OVERHEAD = 512  # bytes of a tensor beside its numbers
STATES = "states"
MEBIBYTE = 1 << 20
MOST = 1e12  # of them


@dataclass(slots=True, eq=False)
class Node:
    """Some tokens that follow those of the nodes above, and what a model holds of them."""

    above: Node | None
    tokens: list[int] = field(default_factory=list)
    parts: Parts = field(default_factory=dict)
    below: dict[int, Node] = field(default_factory=dict)  # by first token

    @property
    def bytes(self) -> int:
        return sum(OVERHEAD + t.numel() * t.element_size() for t in self.parts.values())

    def same(self, tokens: Sequence[int], at: int) -> int:
        """Return how many of its tokens `tokens` has from `at` on."""
        if self.tokens == tokens[at : at + len(self.tokens)]:
            return len(self.tokens)
        pairs = enumerate(zip(self.tokens, tokens[at:], strict=False))
        return next((i for i, (mine, other) in pairs if mine != other), len(tokens) - at)


class PrefixMemory:
    """What several models keep of texts that have ended, within one bound of `limit` bytes.

    The texts of a model form a radix tree, so that a beginning that several have is kept once. Beyond the
    bound the end that has not been used for the longest time is dropped first. Models with recurrent states
    keep nothing, since a state is that of a whole text; nor do GGUF files.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.bytes = limit, 0
        # From the longest unused to the latest used one. A node is always later than those below it.
        self.nodes: OrderedDict[Node, None] = OrderedDict()

    def touch(self, path: Sequence[Node]) -> None:
        for node in reversed(path):
            self.nodes[node] = None
            self.nodes.move_to_end(node)

    def trim(self) -> None:
        while self.bytes > self.limit:
            node, _ = self.nodes.popitem(last=False)
            self.bytes -= node.bytes
            if node.above is not None:
                del node.above.below[node.tokens[0]]


class PrefixTree:
    """The texts of one model, by a mark: texts with different marks have nothing in common."""

    def __init__(self, whole: PrefixMemory) -> None:
        self.whole = whole
        self.roots: dict[Hashable, Node] = {}
        self.most = -1  # tokens that fit into the bound; known when the first have been copied

    def find(self, mark: Hashable, tokens: Sequence[int]) -> list[tuple[Node, int]]:
        """The nodes that a text begins with, from the first token on, and how many tokens of each."""
        found: list[tuple[Node, int]] = []
        node, at = self.roots.get(mark), 0
        while node is not None and at < len(tokens):
            node = node.below.get(tokens[at])
            if node is not None:
                same = node.same(tokens, at)
                found.append((node, same))
                at += same
                if same < len(node.tokens):
                    break
        return found

    def add(self, mark: Hashable, tokens: Sequence[int], take: Callable[[int, int], Parts]) -> None:
        """Keep the tokens of a text that has ended; `take(start, end)` copies what is held of some.

        A text that does not fit is cut. If there is no memory for a copy, nothing has changed.
        """
        whole = self.whole
        if self.most >= 0:
            tokens = tokens[: self.most]
        found = self.find(mark, tokens)
        at = length(found)
        parts = take(at, len(tokens)) if len(tokens) - at >= LEAST else None
        path = [node if same == len(node.tokens) else self._split(node, same) for node, same in found]
        if parts is not None:
            above = path[-1] if path else self.roots.setdefault(mark, Node(None))
            node = Node(above, list(tokens[at:]), parts)
            self._measure(node)
            if node.bytes > whole.limit:  # the first text tells how large a token is
                node.tokens = node.tokens[: self.most]
                node.parts = {name: part[: self.most].clone() for name, part in node.parts.items()}
            if node.tokens:
                above.below[tokens[at]] = node
                path.append(node)
                whole.bytes += node.bytes
        whole.touch(path)
        whole.trim()

    def _measure(self, node: Node) -> None:
        fixed = OVERHEAD * len(node.parts)
        each = max(1, -(-(node.bytes - fixed) // len(node.tokens)))
        self.most = max(0, self.whole.limit - fixed) // each

    def clear(self) -> None:
        for root in self.roots.values():
            waiting = list(root.below.values())
            while waiting:
                node = waiting.pop()
                self.whole.bytes -= node.bytes
                del self.whole.nodes[node]
                waiting += node.below.values()
        self.roots.clear()

    def _split(self, node: Node, length: int) -> Node:
        """Divide a node after its first tokens; returns the upper half.

        Both halves are copies, so that the memory of one is free without the other.
        """
        begun = {name: part[:length].clone() for name, part in node.parts.items()}
        rest = {name: part[length:].clone() for name, part in node.parts.items()}
        upper = Node(node.above, node.tokens[:length], begun)
        assert node.above is not None  # only the root has nothing above, and it has no tokens
        self.whole.bytes -= node.bytes
        node.above.below[node.tokens[0]] = upper
        node.tokens = node.tokens[length:]
        node.parts = rest
        node.above, upper.below[node.tokens[0]] = upper, node
        self.whole.bytes += node.bytes + upper.bytes
        return upper


@runtime_checkable
class StoresPrefixes(Protocol):
    """A target or drafter that can keep what it has read of texts that have ended."""

    def cache_prefixes(self, memory: PrefixMemory) -> None: ...


def keep_prefixes(parts: Iterable[Any], mebibytes: float) -> None:
    """Let the models among a target and its drafters keep what they have read, all within this bound.

    Raises:
        UserError: the bound is no number from 0.
    """
    bounded(mebibytes)
    if mebibytes:
        memory = PrefixMemory(int(mebibytes * MEBIBYTE))
        for part in parts:
            if isinstance(part, StoresPrefixes):
                part.cache_prefixes(memory)


def bounded(mebibytes: Any) -> None:
    """Raise a UserError unless this is a number of MiB."""
    if isinstance(mebibytes, bool) or not isinstance(mebibytes, (int, float)) or not 0 <= mebibytes <= MOST:
        raise UserError(f"prefix_cache={mebibytes!r}: give MiB of memory, or 0 to keep nothing")


Found = list[tuple[Node, int]]
"""The nodes that a text begins with, and how many tokens of each."""


class PrefixCache:
    """The prefixes of one model, whose rows hold keys and values alone: a state has no beginning.

    `recorded` returns the hidden states that drafters read; they are kept too.
    """

    def __init__(
        self,
        runner: ModelRunner,
        memory: PrefixMemory,
        recorded: Callable[[], Iterable[HiddenStates]] = tuple,
    ) -> None:
        self.runner, self.memory, self.recorded = runner, memory, recorded
        self.tree = PrefixTree(memory)

    @torch.inference_mode()
    def store(self, request_id: int, tokens: Sequence[int], length: int, mark: Hashable = 0) -> None:
        """Keep the first `length` tokens of a request's text; with a warning none, if that fails."""
        row, recorded = self.runner.request_ids.index(request_id), list(self.recorded())
        length = min([length, *(states.length(request_id) for states in recorded)])

        def take(start: int, end: int) -> Parts:
            parts = {(STATES, k): s.of(request_id, start, end).clone() for k, s in enumerate(recorded)}
            return copy_parts(self.runner.cache, row, start, end) | parts

        if length >= LEAST:
            try:
                self.tree.add(mark, tokens[:length], take)
            except Exception as error:  # no memory for it, most likely
                warn(f"the prefix of a text is not kept: {one_line(error)}", DraftwiseWarning, stacklevel=4)

    def find(self, tokens: Sequence[int], mark: Hashable = 0) -> Found:
        return self.tree.find(mark, tokens)

    @torch.inference_mode()
    def restore(self, request_id: int, found: Found, slots: int) -> None:
        """Put what was found into the empty row of a request, whose text may grow to `slots` tokens."""
        runner, at, total = self.runner, 0, length(found)
        row = runner.request_ids.index(request_id)
        runner.cache.ready(len(runner.request_ids), total, slots)
        runner.cache.note(row, total)
        for node, n in found:
            write_parts(runner.cache, row, at, {name: part[:n] for name, part in node.parts.items()})
            for k, states in enumerate(self.recorded()):
                states.put(request_id, at, node.parts[STATES, k][:n])
            at += n
        runner.cached_lengths[row] = total
        self.memory.touch([node for node, _ in found])


def length(found: Found) -> int:
    return sum(n for _, n in found)


def copy_parts(cache: RowCache, row: int, start: int, end: int) -> Parts:
    """A copy of what a row holds of some tokens, shape (tokens, heads, size), by layer and name."""
    return {
        (at, name): tensor[row, :, start:end].transpose(0, 1).clone(memory_format=torch.contiguous_format)
        for at, layer in enumerate(cache.rows)
        for name, tensor in layer.named.items()
    }


def write_parts(cache: RowCache, row: int, start: int, parts: Parts) -> None:
    """Write what `copy_parts` returned to the slots of a row from `start` on; `ready` has made room."""
    layers: dict[int, dict[str, Tensor]] = {}
    for (at, name), part in parts.items():
        if isinstance(at, int):
            layers.setdefault(at, {})[str(name)] = part
    for at, named in layers.items():
        layer = cache.layer(at)
        keys, values = named["keys"], named["values"]
        layer.allocate((*keys.shape[1:], *values.shape[1:]), keys.dtype, keys.device)
        for name in named.keys() - {"keys", "values"} - layer.more.keys():
            _, heads, size = named[name].shape
            layer.more[name] = named[name].new_zeros(0, heads, 0, size)
        layer.grow_to_plan()
        for name, part in named.items():
            layer.named[name][row, :, start : start + len(part)] = part.transpose(0, 1)
