"""Replay: record texts and drafts once, then try any policy on them in seconds, without a model.

Shows the policy of `own_policy.py` beside two of the catalogue, at a given cost of drafting. Under greedy
decoding a replayed round is the live round. Takes some 20 seconds on a CPU, most of them for recording.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from draftwise import Method, method
from draftwise.cli import main as draftwise
from draftwise.measure.trace import Replay, ReplayState, Trace, read_costs
from own_policy import epsilon_greedy

DRAFTERS = "zoo:general,ngram,suffix"


def show(name: str, trace: Trace, made: Method) -> None:
    """One line: speed in tokens per target pass, where a drafted token of a model costs 0.05 of one."""
    replay = Replay(trace, made, read_costs("c=0.05"))
    rounds = [one for recording in trace for one in replay.replay(ReplayState(recording))]
    speed = sum(len(one.tokens) for one in rounds) / sum(one.seconds.total for one in rounds)
    print(f"{name:16} {len(rounds):4} rounds, {speed:.2f} tokens per target pass")


def main() -> None:
    with TemporaryDirectory() as folder:
        record = ["trace", "--drafters", DRAFTERS, "--limit", "4", "--length", "8", "--max-new-tokens", "48"]
        if status := draftwise([*record, "--out", folder]):
            raise SystemExit(status)
        trace = Trace(Path(folder))
        show("epsilon-greedy", trace, epsilon_greedy(trace.drafters))
        for name in ("ucb1?length=8", "none"):
            show(name, trace, method(name, trace.drafters))


if __name__ == "__main__":
    main()
