"""Draws the newest kept results of the comparison: each server's rate for each kind of work."""

from pathlib import Path

import msgspec

from loadtests.drawing import new_figure, save_figure
from loadtests.machine import Machine
from loadtests.report import Row

_TITLES = {
    "hits-from-memory": "Hits from memory: requests/s, one core",
    "hits-from-redis": "Hits from Redis: requests/s, one core",
    "misses-classify-fp32": "Misses: sentences/s, all cores",
    "mixed": "Mixed, half repeated: sentences/s, all cores",
}
# These colors are readable on light and dark pages.
_INK, _OURS, _PEERS = "#7d8590", "#3b82d6", "#8b95a1"
_BAR, _HEAD = 0.27, 0.45


class _Kept(msgspec.Struct):
    machine: Machine
    rows: list[Row]


def draw(results: Path, path: Path) -> None:
    """Write an SVG with each server's rate in its quickest configuration, and its relative rate."""
    newest = {}
    for name in _TITLES:
        if found := sorted(results.glob(f"*-peers-{name}.json")):
            newest[name] = msgspec.json.decode(found[-1].read_bytes(), type=_Kept)
    if not newest:
        print(f"nothing to draw: {results} has no results of peers")
        return
    tables = {name: _quickest(kept.rows) for name, kept in newest.items()}
    heights = [_HEAD + _BAR * len(rows) for rows in tables.values()]
    figure = new_figure("peers", width=10, height=sum(heights) + 0.4)
    figure.patch.set_alpha(0)
    grid = figure.subplots(len(tables), squeeze=False, height_ratios=heights)
    for (name, rows), axes in zip(tables.items(), grid.flat, strict=True):
        colors = [_OURS if row.what.startswith("Sluicegate") else _PEERS for row in rows]
        bars = axes.barh(range(len(rows)), [row.rate for row in rows], color=colors, height=0.72)
        labels = [f"{row.rate:,.0f} ({row.ratio:.3g})" for row in rows]
        axes.bar_label(bars, labels, padding=4, fontsize=8.5, color=_INK)
        axes.set_title(_TITLES[name], loc="left", fontsize=10, color=_INK, fontweight="bold")
        axes.set_yticks(range(len(rows)), [row.what.partition(": ")[0] for row in rows])
        axes.set_xticks([])
        axes.set_xlim(0, 1.16 * max(row.rate for row in rows))
        axes.tick_params(colors=_INK, labelsize=8.5, length=0)
        axes.set_frame_on(False)
        axes.invert_yaxis()
    ran = sorted({kept.machine.headline for kept in newest.values()})
    figure.supxlabel("\n".join(ran), fontsize=7.5, color=_INK)
    print(save_figure(figure, path))


def _quickest(rows: list[Row]) -> list[Row]:
    """Return each server in its quickest configuration, Sluicegate's servers first."""
    best: dict[str, Row] = {}
    for row in sorted(rows, key=lambda row: (not row.what.startswith("Sluicegate"), -row.rate)):
        best.setdefault(row.what.partition(": ")[0], row)
    return list(best.values())
