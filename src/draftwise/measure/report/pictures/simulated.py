"""Pictures of the learning simulator: `simulation.json`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..records import Results
from ..style import INK, colour, curve, legend_below, line_style, panels, stack, tall
from .picture import Gallery

if TYPE_CHECKING:
    from matplotlib.figure import Figure

UNITS = {"rounds": "rounds", "seconds": "s, one target pass = 1 s"}
PICTURES = Gallery("Simulation")


@PICTURES.add("Regret", "simulated-regret")
def curves(results: Results) -> Figure:
    """Rounds and time in excess of the best arm's. Lines are means over seeds, bands one standard error."""
    marks = np.array(results.simulation["marks"])
    figure, axes = panels(2, height=2.8)
    for ax, key in zip(axes, ("rounds", "seconds"), strict=True):
        for i, policy in enumerate(results.simulation["policies"]):
            mean, error = (np.array(policy[f"{key}_regret{which}"], float) for which in ("", "_error"))
            curve(ax, marks, mean, label=policy["policy"], **line_style(i))
            ax.fill_between(marks, mean - error, mean + error, color=colour(i), alpha=0.15, linewidth=0)
        ax.axhline(0.0, color=INK, linewidth=0.8)
        ax.set(xlabel="tokens generated", ylabel=f"regret ({UNITS[key]})")
    legend_below(figure, *axes)
    return figure


@PICTURES.add("Choices of the best arm", "simulated-best")
def best_arm(results: Results) -> Figure:
    """Mean over seeds, between one mark and the next."""
    marks = results.simulation["marks"]
    figure, (ax,) = panels(height=2.6)
    for i, policy in enumerate(results.simulation["policies"]):
        share = np.array(policy["best_share"], float)
        curve(ax, marks, share, label=policy["policy"], **line_style(i))
    ax.set(xlabel="tokens generated", ylabel="share of rounds with the best arm", ylim=(0, 1.02))
    legend_below(figure, ax)
    return figure


@PICTURES.add("Arms by policy", "simulated-pulls")
def pulls(results: Results) -> Figure:
    """The share of rounds of each arm, over all seeds."""
    policies, arms = results.simulation["policies"], results.simulation["arms"]
    shares = np.array([policy["pulls"] for policy in policies], dtype=np.float64)
    shares /= shares.sum(axis=1, keepdims=True)
    names = [policy["policy"] for policy in policies]
    figure, (ax,) = panels(height=tall(names, 0.24, 0.6))
    stack(ax, names, {arm["name"]: (shares[:, i], i) for i, arm in enumerate(arms)})
    ax.set(xlabel="share of rounds", xlim=(0, 1))
    legend_below(figure, ax, columns=4)
    return figure
