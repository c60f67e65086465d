"""A policy of your own in ten lines: epsilon-greedy over drafters, rewarded by accepted tokens.

Shows `choose` and `learn`, and a decoder with the policy. Takes some 10 seconds on a CPU.
"""

from collections.abc import Sequence
from random import Random

from draftwise import Decoder
from draftwise.plugins import Arm, Bandit, Context, Decision, Feedback, Method, Policy, reward


class EpsilonGreedy(Policy):
    """Plays the arm with the best mean reward; with probability `epsilon` any arm."""

    def __init__(self, arms: Sequence[Arm], epsilon: float = 0.1) -> None:
        self.arms, self.epsilon = tuple(arms), epsilon
        self.total, self.plays = [0.0] * len(arms), [0] * len(arms)

    def choose(self, context: Context, rng: Random) -> Decision:
        if rng.random() < self.epsilon:
            return Decision(rng.randrange(len(self.arms)))
        means = [t / n if n else 1.0 for t, n in zip(self.total, self.plays, strict=True)]
        return Decision(means.index(max(means)))

    def learn(self, feedback: Feedback) -> None:
        for outcome in feedback.outcomes:
            self.total[feedback.decision.arm] += outcome.reward
            self.plays[feedback.decision.arm] += 1


def epsilon_greedy(drafters: Sequence[str], *, length: int = 4) -> Method:
    """What an entry point in the group `draftwise.policies` would name; see docs/how-to/plugins.md."""
    policy = EpsilonGreedy([Arm(name, length) for name in drafters])
    return Method(policy, Bandit(reward("accepted"), length))


def main() -> None:
    drafters = ["zoo:general", "ngram", "suffix"]
    mine = Decoder.from_pretrained("zoo:target", drafters=drafters, policy=epsilon_greedy)
    out = mine.generate("What is 12 plus 30?", max_new_tokens=64)
    print(out.text)
    print("rounds by arm:", out.stats.pulls)


if __name__ == "__main__":
    main()
