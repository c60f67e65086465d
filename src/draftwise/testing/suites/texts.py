"""Whatever a drafter drafts, the text is the target's own: alone, in batches, after faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ...core.arms import Arm
from ...core.request import Request
from ...core.sampling import Sampling
from ..exact import exact_of, p_value
from ..world import drafting
from .checks import SURE, fail
from .plays import GREEDY, LENGTHS, NAME, PLAIN, SETTINGS, SHAPED, Play, Plays
from .watch import generator

WORDS = 3  # tokens of a text whose distribution is compared
LEAVE = "leave requests as they are: copy request.tokens, and draw from request.rng in `draft` only"


class TextChecks(Plays):
    """Checks of what is written."""

    @property
    def many(self) -> Play:
        """Many short texts, one at a time."""
        found: Play = self.once("many", lambda: self._sampled(PLAIN, (Arm(NAME, WORDS),), batch=1))
        return found

    def test_greedy_text_is_the_targets_own(self) -> None:
        """Token for token, one text at a time."""
        self._same("greedy")

    def test_greedy_text_in_a_batch_is_the_targets_own(self) -> None:
        """With several requests that start together, and with trees, stop rules and grading."""
        for name in ("greedy batch", "graded", "wide", "rules"):
            self._same(name)

    def test_requests_that_join_and_leave_get_their_own_text(self) -> None:
        """Some start late, and some are closed before their end."""
        play, lots = self.start(drafting(NAME, LENGTHS), graded=True), generator(2)
        plain = self._greedy
        alive: dict[int, Request] = {}
        whose: dict[int, int] = {}
        for turn in range(120):
            if len(alive) < 4 and turn < 60:
                at = turn % len(self.prompts)
                request = play.loop.add(self.prompts[at], GREEDY)
                alive[request.id], whose[request.id] = request, at
            play.add(play.loop.step())
            for key in [key for key, request in alive.items() if request.done]:
                del alive[key]
            if alive and lots.random() < 0.05:
                play.loop.close(alive.pop(lots.choice(sorted(alive))))
        for key, text in play.texts.items():
            if text != plain[whose[key]][: len(text)]:
                fail(f"request {key} wrote {text[:8]}..., not {plain[whose[key]][:8]}...", LEAVE)

    def test_text_up_to_the_end_of_the_window_is_the_targets_own(self) -> None:
        """The target reads `max_length` tokens, so that a text may have one more."""
        for at, prompt in enumerate(self.prompts):
            play = self.start((Arm(NAME, 5),))
            play.loop.target.max_length = len(prompt) + 9
            play.add(list(play.loop.run([prompt], GREEDY)))
            if play.texts[0] != self._greedy[at][:10]:
                fail(f"{play.texts[0]} in place of {self._greedy[at][:10]} at the end of the window", LEAVE)

    def test_a_text_that_goes_on_after_its_end_is_the_targets_own(self) -> None:
        """As in a chat: a parked request gets more tokens, and another answer."""
        more, short = list(self.prompts[0][:2]), replace(GREEDY, max_new_tokens=12)
        texts: list[list[int]] = []
        for arms in ((Arm("none", 0),), drafting(NAME, LENGTHS)):
            loop = self.start(arms).loop
            request = loop.add(self.prompts[0], short, keep=True)
            for _ in range(2):
                while loop.open:
                    loop.step()
                if len(texts) < 2 and request.id in loop.parked:
                    loop.extend(request, more, short)
            texts.append(list(request.tokens))
        if texts[0] != texts[1]:
            fail("the second answer is not the target's own", f"observe() brings later turns too; {LEAVE}")

    def test_sampled_text_has_the_targets_distribution(self) -> None:
        """Texts of three tokens, counted against the exact probability of each."""
        self._fits(PLAIN, self.many)

    def test_sampled_text_in_batches_has_the_targets_distribution(self) -> None:
        """With warped distributions, arms that change each round, and five requests at once."""
        self._fits(SHAPED, self._sampled(SHAPED, drafting(NAME, (1, 3)), batch=5))

    def test_faults_cost_no_text(self) -> None:
        """A call of each method raises, at one time or another: the texts are right, and nothing is left."""
        setting = SETTINGS["greedy batch"]
        for name in ("hint", "observe", "draft"):
            for turn in (1, 2, 6):
                play = self.run(setting, faults={name: turn})
                for at, own in enumerate(self._greedy):
                    if play.texts[at] != own:
                        fail(f"request {at} has another text after call {turn} of {name} raised", LEAVE)
                if play.watch.errors and not self.play("greedy batch").watch.errors:
                    fail(f"{play.watch.errors[0]}, after call {turn} of {name} raised", "forget that request")

    def test_drafts_are_accepted_and_rejected(self) -> None:
        """Else the other checks say little."""
        rounds = [r for play in self.plays.values() for r in play.rounds if r.drafted]
        if not any(r.accepted for r in rounds):
            fail("no drafted token was accepted", "give the suite a `target` that it can draft for")
        if all(r.accepted == r.drafted for r in rounds):
            fail("no drafted token was rejected", "give the suite a `target` that disagrees now and then")

    @property
    def _greedy(self) -> list[list[int]]:
        """The target's own text of each prompt."""
        found: list[list[int]] = self.once("greedy texts", lambda: self.plain(GREEDY, self.prompts))
        return found

    def _same(self, name: str) -> None:
        __tracebackhide__ = True
        play = self.play(name)
        for at, own in enumerate(self._greedy):
            if (text := play.texts[at]) != own:
                k = next(k for k in range(len(own)) if text[k : k + 1] != own[k : k + 1])
                fail(f"text {at} differs from the target's own at token {k} ({name})", LEAVE)

    def _sampled(self, sampling: Sampling, arms: Sequence[Arm], *, batch: int) -> Play:
        play = self.start(arms, compare=False)
        short = replace(sampling, max_new_tokens=WORDS)
        play.add(list(play.loop.run([self.prompts[0]] * self.samples, short, batch=batch)))
        return play

    def _fits(self, sampling: Sampling, play: Play) -> None:
        __tracebackhide__ = True
        known = self.once(
            f"exact {sampling}",
            lambda: exact_of(type(self).target(), self.prompts[0], WORDS, sampling),
        )
        p = p_value(Counter(map(tuple, play.texts.values())), known)
        if p < SURE:
            fail(
                f"{self.samples} texts do not have the target's distribution (p = {p:.1e})",
                "draw tokens with job.request.rng, and give the distributions they were drawn from",
            )
