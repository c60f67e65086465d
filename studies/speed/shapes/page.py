"""Tables and the picture of the page, from what was measured; the tables stand between markers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from draftwise.errors import UserError
from studies.common.plot import panels
from studies.speed.shapes.cases import Found
from studies.speed.shapes.prices import OPTIMUM, speedups
from studies.speed.table import markdown, spread

SHOWN = (1, 5, 9, 17, 33)  # widths in the table


def written(page: Path, name: str, lines: Sequence[str]) -> None:
    """Replace what stands between `<!-- NAME -->` and `<!-- end of NAME -->`.

    Raises:
        UserError: the page has no such markers.
    """
    text = page.read_text(encoding="utf-8")
    between = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.S)
    made, count = between.subn(lambda found: found[1] + "\n".join(lines) + "\n" + found[2], text)
    if count != 1:
        raise UserError(
            f"{str(page)!r} has no lines `<!-- {name} -->` and `<!-- end of {name} -->`: add them"
        )
    part = page.with_name(page.name + ".part")
    part.write_text(made, encoding="utf-8")
    part.replace(page)


def conditions(found: Sequence[Found], command: str, spread_of: str, clean: bool) -> Iterator[str]:
    """The line above a table: command, machine, edition of the models and spread."""
    machine = found[0].machine
    versions = machine["versions"]
    used = [s["others"] for one in found for s in one.load if s.get("others") is not None]
    busy = "quiet" if clean else f"NOT QUIET (others used up to {max(used, default=0.0):.1f} cores)"
    place = (
        f"{machine['cores']} cores of an {machine['cpu']}, {machine['threads']} threads, "
        f"PyTorch {versions['torch']}, Transformers {versions['transformers']}, {busy}"
    )
    yield f"**Measured:** `{command}`; {place.replace(';', ',')};"
    yield f"second edition, and random weights in the other shapes; {spread_of}."
    yield ""


def limits(found: Sequence[Found]) -> Iterator[str]:
    """What the machine read and multiplied in the best of all cases, by precision."""
    body = []
    for precision in dict.fromkeys(one.case.precision for one in found):
        mine = [one.limits for one in found if one.case.precision == precision]
        best = {key: max(one[key] for one in mine) / 1e9 for key in ("one", "all", "flops")}
        body.append([precision, f"{best['one']:.1f}", f"{best['all']:.1f}", f"{best['flops']:.0f}"])
    head = ["precision", "GB/s, one thread", "GB/s, all threads", "GFLOP/s, all threads"]
    yield from markdown(head, body)


def passes(found: Sequence[Found]) -> Iterator[str]:
    """One row a case: passes by width in milliseconds, what they could cost, and the drafter's token."""
    head = ["shape", "weights", "mode", "GB", *(f"{n}" for n in SHOWN), "limit of 1", "of 9"]
    head += ["1 / limit", "9 / limit", "9 / 1", "drafted token"]
    body = []
    for one in found:
        widths = {n: 1e3 * one.median(n) for n in SHOWN}
        least = {n: 1e3 * one.limit(n) for n in (1, 9)}
        case = one.case
        row = [case.shape, case.precision, case.mode, f"{one.weights[1] / 1e9:.2f}"]
        row += [f"{ms:.0f}" if ms >= 100 else f"{ms:.1f}" for ms in widths.values()]
        row += [f"{ms:.0f}" if ms >= 100 else f"{ms:.1f}" for ms in least.values()]
        row += [f"{widths[n] / least[n]:.2f}" for n in (1, 9)]
        row += [f"{widths[9] / widths[1]:.2f}", f"{1e3 * one.drafter.step:.1f}"]
        body.append(row)
    yield from markdown(head, body)


def made_of(out: Path, found: Sequence[Found]) -> Iterator[str]:
    """One row a case, one column a method: speed-ups over plain decoding, `auto`'s share of the optimum."""
    rows = {one.case.name: speedups(out, one.case.name) for one in found}
    names = [name for name in next(iter(rows.values())) if name not in ("none", "auto", OPTIMUM)]
    head = ["shape", "weights", "mode", *(_short(name) for name in names), "`auto`", "optimum", "share"]
    body = []
    for one in found:
        mine, case = rows[one.case.name], one.case
        share = f"{100 * mine['auto']['fraction_of_optimum']:.0f} %"
        best = f"{mine[OPTIMUM]['speedup']:.2f}"
        cells = [f"{mine[name]['speedup']:.2f}" for name in names]
        body.append([case.shape, case.precision, case.mode, *cells, spread(mine["auto"]), best, share])
    yield from markdown(head, body)


def _short(name: str) -> str:
    method, _, drafter = name.partition("?drafter=")
    return f"`{method}` {drafter.removeprefix('zoo:')}"


def draw(found: Sequence[Found]) -> Any:
    """A panel for each shape: milliseconds by width, and dashed what a pass could cost."""
    shapes = list(dict.fromkeys(one.case.shape for one in found))
    figure, axes = panels(len(shapes), width=2.9)
    for axis, shape in zip(axes, shapes, strict=True):
        for one in (one for one in found if one.case.shape == shape):
            widths = sorted(one.passes)
            (line,) = axis.plot(
                widths,
                [1e3 * one.median(n) for n in widths],
                marker="o",
                markersize=2.5,
                label=f"{one.case.precision}, {one.case.mode}",
            )
            least = [1e3 * one.limit(n) for n in widths]
            axis.plot(widths, least, linestyle="--", linewidth=1.0, color=line.get_color())
        axis.set(title=shape, xlabel="tokens in the pass", ylim=(0, None))
        axis.legend(fontsize=7)
    axes[0].set_ylabel("milliseconds (dashed: could be)")
    return figure
