"""Pictures of the learning simulator: `simulation.json`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..records import Results
from ..style import INK, below, colour, look, panels, stack

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def curves(results: Results) -> Figure:
    """Rounds and seconds more than the best fixed arm's, against the tokens written; bands are one standard
    error over the seeds."""
    found, marks = results.simulation["policies"], np.array(results.simulation["marks"])
    figure, axes = panels(2, height=2.8)
    for ax, key in zip(axes, ("rounds", "seconds"), strict=True):
        for i, policy in enumerate(found):
            mean, error = (np.array(policy[f"{key}_regret{which}"], float) for which in ("", "_error"))
            ax.plot(marks, mean, label=policy["policy"], **look(i))
            ax.fill_between(marks, mean - error, mean + error, color=colour(i), alpha=0.15, linewidth=0)
        ax.axhline(0.0, color=INK, linewidth=0.8)
        ax.set(xlabel="tokens", ylabel=f"{key} more")
    below(figure, axes[0])
    return figure


def best_arm(results: Results) -> Figure:
    """How often the best arm was played, by stretch of the text."""
    found, marks = results.simulation["policies"], results.simulation["marks"]
    figure, (ax,) = panels(height=2.6)
    for i, policy in enumerate(found):
        ax.plot(marks, np.array(policy["best_share"], float), label=policy["policy"], **look(i))
    ax.set(xlabel="tokens", ylabel="share of the best arm", ylim=(0, 1.02))
    below(figure, ax)
    return figure


def pulls(results: Results) -> Figure:
    """Which arm each policy played, as shares of its rounds."""
    found, arms = results.simulation["policies"], [arm["name"] for arm in results.simulation["arms"]]
    shares = np.array([policy["pulls"] for policy in found], dtype=np.float64)
    shares /= shares.sum(axis=1, keepdims=True)
    figure, (ax,) = panels(height=0.24 * len(found) + 0.6)
    stack(ax, [p["policy"] for p in found], {arm: (shares[:, i], i) for i, arm in enumerate(arms)})
    ax.set(xlabel="share of the rounds", xlim=(0, 1))
    below(figure, ax, columns=4)
    return figure
