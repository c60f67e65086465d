"""Whatever a policy decides, the text is the target's own."""

from __future__ import annotations

from collections import Counter

from ...core.loop import Loop
from ...core.sampling import Sampling
from ...policies.bandit import BanditPolicy
from ...policies.recorders.bandit import Bandit
from ...policies.recorders.rewards import reward
from ..exact import exact_of, p_value
from ..world import PROMPTS, at_random, drafting, small_target
from .checks import SURE, fail
from .games import Games

GREEDY = Sampling(max_new_tokens=40, repetition_penalty=1.3)
SAMPLED = Sampling(max_new_tokens=3, temperature=0.9, top_k=3, presence_penalty=0.2)
LEAVE = "read contexts and texts, and change neither"


class TextsDecided(Games):
    """Checks of what is written."""

    def test_greedy_text_is_the_targets_own(self) -> None:
        """Token for token, alone and in a batch."""
        for batch in (1, 3):
            game = self.start()
            game.run(PROMPTS, GREEDY, batch=batch)
            self._own(game.texts, f"in batches of {batch}")

    def test_sampled_text_has_the_targets_distribution(self) -> None:
        """Texts of three tokens, counted against the exact probability of each."""
        game = self.start()
        game.run([PROMPTS[0]] * self.samples, SAMPLED, batch=3)
        known = exact_of(small_target(), PROMPTS[0], 3, SAMPLED)
        p = p_value(Counter(map(tuple, game.texts.values())), known)
        if p < SURE:
            fail(f"{self.samples} texts do not have the target's distribution (p = {p:.1e})", LEAVE)

    def test_faults_cost_no_text(self) -> None:
        """A call of each method raises, at one time or another; the next texts are decided as ever."""
        for name, turn in (("choose", 1), ("choose", 7), ("learn", 1), ("learn", 5)):
            game = self.start(faults={name: turn})
            game.run(PROMPTS, GREEDY, batch=3)
            self._own(game.texts, f"after call {turn} of {name} raised")
            if game.tape.errors and not self.game.tape.errors:
                said = f"{game.tape.errors[0]}, after call {turn} of {name} raised"
                fail(said, "a decision that was made may never be learned from")

    def test_contexts_and_texts_are_left_as_they_are(self) -> None:
        """Neither `choose` nor `open` changes what it is shown."""
        for name in self.game.tape.changed[:1]:
            fail(f"{name} changed what it was shown", LEAVE)

    def _own(self, texts: dict[int, list[int]], when: str) -> None:
        __tracebackhide__ = True
        plain = self.once("plain", _plain)
        for at, own in enumerate(plain):
            if texts[at] != own:
                fail(f"text {at} is not the target's own {when}", LEAVE)


def _plain() -> list[list[int]]:
    policy: BanditPolicy = at_random(drafting("none", ()))
    loop = Loop(small_target(), {}, policy, Bandit(reward("accepted"), 1))
    texts: dict[int, list[int]] = {}
    for round in loop.run(PROMPTS, GREEDY):
        texts.setdefault(round.request, []).extend(round.tokens)
    return [texts[i] for i in range(len(PROMPTS))]
