"""The target: the model whose text is written, and what it thinks of a draft."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from .drafts import Draft, Verdict
from .passes import TargetInfo
from .request import Request


class Scores(Protocol):
    """What the target thinks of one draft, node by node. Node -1 is the last committed token.

    `accept` asks during a round, in path order and only below accepted nodes, so that a logits processor sees
    each committed prefix once. Recorders ask after the commit: scores answer for the text before it. Rows
    stay on their device; each method but `distributions` returns plain Python numbers. What a method raises
    during acceptance ends the request with that error.
    """

    def choice(self, node: int) -> int:
        """The target's own token after `node`: a token id, drawn at the quantile `request.uniform(position)`.

        The same node gives the same token each time. Called by `accept`: for a picked draft at every accepted
        node and at -1, for a sampled draft after its last node when all of it was accepted.

        Examples:
            >>> (scores,) = target.verify([(request, Draft.chain([3, 7]))])
            >>> scores.choice(-1), scores.choice(0)
            (3, 4)
        """

    def prob(self, node: int) -> float:
        """Return the target's probability of the drafted token `node` after its parent, in [0, 1].

        It is a probability under the request's sampling settings: one-hot where the request is greedy. Called
        by `accept` for the nodes of a sampled draft, in order, up to the first that is rejected.

        Examples:
            >>> (scores,) = target.verify([(request, Draft.chain([3, 7]))])
            >>> scores.prob(0), scores.prob(1)
            (1.0, 0.0)
        """

    def residual(self, node: int) -> int:
        """A token id drawn from (p - q)+ after the parent of `node`, with the request's generator `rng`.

        p is the target's distribution there and q the draft's, `draft.dist[node]`; p itself where nothing is
        left of p - q. Called by `accept`, once, for the rejected node of a sampled draft.

        Examples:
            >>> q = [[0.0] * 7 + [1.0]]
            >>> (scores,) = target.verify([(request, Draft.chain([7], probs=[1.0], dist=q))])
            >>> scores.residual(0)
            3
        """

    def logprob(self, node: int, token: int) -> float:
        """Return the log-probability of `token` after `node` under the raw softmax at temperature 1, in nats.

        Called by the loop for each committed token, if the request asks for `logprobs`.
        """

    def chance(self, node: int, token: int) -> float:
        """The target's probability of any `token` after `node`, in [0, 1], under the sampling settings.

        Called by recorders of full information after the commit.

        Examples:
            >>> (scores,) = target.verify([(request, Draft())])
            >>> scores.chance(-1, 3)
            1.0
        """

    def distributions(self, nodes: Sequence[int]) -> Any:
        """Return the target's distributions after `nodes`: shape (nodes, vocabulary), on the target's device.

        None where they are one-hot, as for a greedy request. Called by recorders of full information, which
        hand the rows to `Grader.grade` unread.
        """

    def overlaps(self) -> Sequence[float]:
        """1 - TV between the raw distributions at temperature 1 of target and drafter, one number per node.

        A draft without `rows`, and every tree, counts as picked for certain: the number is then the target's
        raw probability of the drafted token. Called by the loop after the commit, if the recorder reads
        "overlap". Must not raise.

        Examples:
            >>> (scores,) = target.verify([(request, Draft.chain([3, 7]))])
            >>> [round(overlap, 2) for overlap in scores.overlaps()]
            [0.93, 0.01]
        """


@runtime_checkable
class Ranked(Protocol):
    """Scores that also name the most likely tokens of a node."""

    def top(self, node: int, n: int) -> tuple[tuple[int, float], ...]:
        """Return the `n` most likely tokens after `node` with their log-probabilities, best first.

        They are those of `Scores.logprob`. Called by the loop if the request asks for `top_logprobs`.
        """


@runtime_checkable
class Pieces(Protocol):
    """A target that can read a long prompt in pieces, between the rounds of other requests."""

    def read(self, request: Request, others: Sequence[Request]) -> bool:
        """Read one piece of what it has not read of an open request; whether there is another one.

        `others` are the open requests whose text may begin alike. Called between steps, by `Loop.read`; the
        next `verify` reads the rest.
        """


@runtime_checkable
class Informed(Protocol):
    """A target that tells how its passes are run, in a record that it keeps up to date."""

    info: TargetInfo


@runtime_checkable
class Target(Protocol):
    """The model whose text is written.

    Between rounds its KV cache holds every committed token of an open request but the last. The loop calls it
    from one thread at a time, under its lock, though not always from the same thread. `vocab_size` is the
    number of token ids; `max_length` the most tokens of a text that it can read: a text may have one more,
    since its last token is not read. What else it tells of itself is in its `info` (`Informed`).
    """

    vocab_size: int
    max_length: int

    def open(self, request: Request) -> None:
        """Prepare for a request; its tokens are not there yet, and come with the first `verify`.

        Called by `Loop.add`. What it raises goes to the caller of `add`, and the request is not opened.
        """

    def verify(self, batch: Sequence[tuple[Request, Draft]]) -> list[Scores]:
        """Read the new tokens of each text, and its draft, in one pass; one `Scores` per pair, in order.

        Drafts may be empty, of different lengths, and trees. Called by the loop once a round. If a pass over
        several requests raises, the loop makes it again for each request alone; what raises then ends that
        request with the error. A request whose logits before its draft are NaN is verified again, alone and
        without the draft: what was read and not committed is to be forgotten.

        Examples:
            >>> scores = target.verify([(request, Draft.chain([3, 7]))])
            >>> len(scores)
            1
        """

    def commit(self, batch: Sequence[tuple[Request, Draft, Verdict]]) -> None:
        """Keep the accepted nodes of each draft and forget the others.

        `request.tokens` already ends with what was committed, which may be less than the verdict's path where
        the text ended inside the draft. Called by the loop once a round, after `verify`, for the requests
        that did not fail. What it raises ends all of them with that error.

        Examples:
            >>> draft = Draft.chain([3, 7])
            >>> (scores,) = target.verify([(request, draft)])
            >>> verdict = accept(draft, scores, request.rng)
            >>> request.tokens += [3, verdict.token]
            >>> target.commit([(request, draft, verdict)])
        """

    def close(self, request: Request) -> None:
        """Free what is kept for a request. Called by the loop once, when the request is forgotten."""


@runtime_checkable
class Asynchronous(Protocol):
    """A target whose device may compute while the host does other work."""

    @property
    def is_asynchronous(self) -> bool:
        """Return whether the loop is to call `launch` in place of `verify`: the model is on such a device.

        Called by the loop once, when it is made.
        """

    def launch(self, batch: Sequence[tuple[Request, Draft]]) -> Callable[[], list[Scores]]:
        """Start the pass of `verify`, and return a function that waits for it and returns the scores.

        Called by the loop in place of `verify`. In between it learns from the round before; it calls the
        function once, before anything else of the target. What either of the two raises is a failed pass.
        """


@runtime_checkable
class Limited(Protocol):
    """A target that cannot verify a draft of every length at once."""

    def reach(self, request: Request) -> int:
        """Return the longest draft, in tokens, that the next pass can read for this request.

        Called by the loop for each request of a round, before the policy chooses. Must not raise.
        """


@runtime_checkable
class TreeReader(Protocol):
    """A target that may be able to verify trees."""

    def can_read_trees(self) -> bool:
        """Return whether it can.

        Called by a policy's recorder, before the policy chooses trees by itself. Must not raise.
        """


def window_of(target: Target) -> int:
    """The tokens that a text may have where it should make sense: those that the target was trained for.

    `max_length` is where the target itself ends; rotary models continue past their window.
    """
    return min(target.max_length, int(getattr(target, "window", target.max_length)))
