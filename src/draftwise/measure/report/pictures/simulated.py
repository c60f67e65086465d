"""Pictures of the learning simulator: `simulation.json`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..colours import INK, colour
from ..records import Results
from ..style import below, curve, look, panels, stack, tall

if TYPE_CHECKING:
    from matplotlib.figure import Figure

UNITS = {"rounds": "rounds", "seconds": "s, one target pass = 1 s"}


def curves(results: Results) -> Figure:
    """Regret in rounds and in time by tokens generated; bands are one standard error over the seeds."""
    found, marks = results.simulation["policies"], np.array(results.simulation["marks"])
    figure, axes = panels(2, height=2.8)
    for ax, key in zip(axes, ("rounds", "seconds"), strict=True):
        for i, policy in enumerate(found):
            mean, error = (np.array(policy[f"{key}_regret{which}"], float) for which in ("", "_error"))
            curve(ax, marks, mean, label=policy["policy"], **look(i))
            ax.fill_between(marks, mean - error, mean + error, color=colour(i), alpha=0.15, linewidth=0)
        ax.axhline(0.0, color=INK, linewidth=0.8)
        ax.set(xlabel="tokens generated", ylabel=f"regret ({UNITS[key]})")
    below(figure, *axes)
    return figure


def best_arm(results: Results) -> Figure:
    """Share of rounds with the best arm, between one mark and the next."""
    found, marks = results.simulation["policies"], results.simulation["marks"]
    figure, (ax,) = panels(height=2.6)
    for i, policy in enumerate(found):
        curve(ax, marks, np.array(policy["best_share"], float), label=policy["policy"], **look(i))
    ax.set(xlabel="tokens generated", ylabel="share of rounds with the best arm", ylim=(0, 1.02))
    below(figure, ax)
    return figure


def pulls(results: Results) -> Figure:
    """The share of each arm in the rounds of each policy."""
    found, arms = results.simulation["policies"], [arm["name"] for arm in results.simulation["arms"]]
    shares = np.array([policy["pulls"] for policy in found], dtype=np.float64)
    shares /= shares.sum(axis=1, keepdims=True)
    policies = [policy["policy"] for policy in found]
    figure, (ax,) = panels(height=tall(policies, 0.24, 0.6))
    stack(ax, policies, {arm: (shares[:, i], i) for i, arm in enumerate(arms)})
    ax.set(xlabel="share of rounds", xlim=(0, 1))
    below(figure, ax, columns=4)
    return figure
