"""Draws the comparison: for each kind of work the rates, and the rates as parts of Sluicegate's.

The background and the ink follow the reader's colour scheme, so one file serves dark and light.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any  # matplotlib's types come with it, and it may be absent

from loadtests.drawing import new_figure, svg_of
from loadtests.peers.comparison import OURS, Comparison, Figure, Kind, Work, short

_PAPER, _INK, _GRID = "#fdfdfe", "#1f2329", "#d5d7da"
_DARK = {_PAPER: "#0d1117", _INK: "#e6edf3", _GRID: "#30363d"}
_OURS, _PEERS = "#3b82d6", "#8b95a1"
_TITLES = {
    Kind.HITS: "Hits: requests/s, one core",
    Kind.MISSES: "Misses: sentences/s, all cores",
    Kind.MIXED: "Mixed, half repeated: sentences/s, all cores",
}
_BAR, _HEAD, _FOOT_LINE = 0.27, 0.45, 0.17


def draw_comparison(comparison: Comparison, path: Path) -> None:
    """Write the picture as SVG: classifications in fp32, each peer in its quickest way."""
    groups = {kind: shown for kind in Kind if (shown := comparison.at(Work(kind=kind)))}
    foot = _foot(comparison, groups)
    heights = [_HEAD + _BAR * len(figures) for figures in groups.values()]
    below = _FOOT_LINE * len(foot) + 0.1
    height = sum(heights) + below
    figure = new_figure("peers", width=10, height=height)
    figure.set_facecolor(_PAPER)
    figure.get_layout_engine().set(rect=(0, below / height, 1, 1 - below / height))
    grid = figure.subplots(
        len(groups), 2, squeeze=False, width_ratios=(1.3, 1), height_ratios=heights
    )
    for (kind, figures), (rates, ratios) in zip(groups.items(), grid, strict=True):
        _panel(rates, figures, [each.rate for each in figures], "{:,.0f}")
        _panel(ratios, figures, [each.of_ours for each in figures], "{:.2f}")
        ratios.axvline(1, color=_GRID, linewidth=1, zorder=0)
        rates.set_yticks(range(len(figures)), [short(each) for each in figures])
        ratios.set_yticks(range(len(figures)), [""] * len(figures))
        rates.set_title(_TITLES[kind], loc="left", fontsize=10, color=_INK, fontweight="bold")
        beside = {each.beside for each in figures}
        title = f"of {beside.pop()}" if len(beside) == 1 else "of Sluicegate's, from the same place"
        ratios.set_title(title, loc="left", fontsize=10, color=_INK)
    figure.text(0.01, 0.05 / height, "\n".join(foot), fontsize=7.5, color=_INK)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_for_both_schemes(svg_of(figure)))


def _panel(axes: Any, figures: Sequence[Figure], values: Sequence[float], form: str) -> None:
    axes.set_facecolor(_PAPER)
    colors = [_OURS if figure.peer == OURS else _PEERS for figure in figures]
    bars = axes.barh(range(len(figures)), values, color=colors, height=0.72)
    labels = [form.format(value) if value >= 0.1 else f"{value:.3f}" for value in values]
    axes.bar_label(bars, labels, padding=4, fontsize=8.5, color=_INK)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.16 * max(values))
    axes.set_xticks([])
    axes.tick_params(colors=_INK, labelsize=8.5, length=0)
    axes.set_frame_on(False)


def _foot(comparison: Comparison, groups: dict[Kind, list[Figure]]) -> list[str]:
    """Return who ran where and when, and what is missing."""
    lines = ["A DRY RUN: these figures say nothing."] * comparison.is_dry_run
    for kind, figures in groups.items():
        ran = dict.fromkeys(comparison.sources[each.source].machine.headline for each in figures)
        lines.append(f"{kind}: {'; '.join(ran)}")
    if missing := [kind for kind in Kind if kind not in groups]:
        lines.append(f"not measured yet: {', '.join(missing)}")
    return lines


def _for_both_schemes(svg: str) -> str:
    """Make the colours of paper, ink and grid those of a dark page where the reader wants it."""
    rules = "".join(
        f'[style*="fill: {light}"]{{fill:{dark}!important}}'
        f'[style*="stroke: {light}"]{{stroke:{dark}!important}}'
        for light, dark in _DARK.items()
    )
    style = f"<style>@media (prefers-color-scheme: dark){{{rules}}}</style>"
    head, end, rest = svg.partition(">")
    return f"{head}{end}\n{style}{rest}"
