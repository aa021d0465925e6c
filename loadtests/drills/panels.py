"""Asks what panels of dashboards show, and draws them with their queries, titles and units."""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any  # matplotlib's types

from loadtests.dashboards.queries import filled_in
from loadtests.drawing import finish_axes, new_figure, save_figure
from testing.prometheus import Prometheus
from tools.monitoring.dashboards.every import DASHBOARDS
from tools.monitoring.grafana import Dashboard, Panel, Query, Unit

_WINDOW = "1m"
"""What Grafana takes as the rate interval of scrapes that are 15 s apart."""
_STEP = 5.0
_MOST_SERIES = 4
_STYLES = ("-", "--", ":", "-.")
_WIDTH, _HEIGHT = 4.2, 2.9
_UNITS: Mapping[Unit, tuple[float, str]] = {
    "s": (1.0, "seconds"),
    "reqps": (1.0, "requests a second"),
    "ops": (1.0, "a second"),
    "percentunit": (100.0, "%"),
    "bytes": (1e-6, "MB"),
}
_OTHER_UNIT = (1.0, "")


def find_panel(uid: str, title: str) -> tuple[Dashboard, Panel]:
    """Return a panel, and the dashboard that has it."""
    dashboard = next(each for each in DASHBOARDS if each.uid == uid)
    return dashboard, next(each for each in dashboard.panels() if each.title == title)


def shown_by(prometheus: Prometheus, uid: str, title: str) -> str:
    """Return the largest values that a panel shows now, as text."""
    dashboard, panel = find_panel(uid, title)
    values: list[tuple[float, str]] = []
    for query in panel.queries:
        values += [
            (float(series["value"][1]), legend_of(query, series["metric"]))
            for series in prometheus.query(filled_in(dashboard, query.expr, _WINDOW))
        ]
    values = sorted((each for each in values if each[0] == each[0]), reverse=True)
    shown = [f"{legend} {_figure(value)}".strip() for value, legend in values[:_MOST_SERIES]]
    return ", ".join(shown) or "no data"


def legend_of(query: Query, labels: Mapping[str, str]) -> str:
    """Return the legend of a series; labels that are empty are left out of answers."""
    legend = re.sub(r"{{(\w+)}}", lambda match: labels.get(match[1], ""), query.legend)
    return legend.strip()


def draw_panels(
    prometheus: Prometheus,
    panels: Sequence[tuple[str, str]],
    path: Path,
    *,
    fault: float,
    since: float,
) -> None:
    """Draw panels side by side, from `since` until now; times are seconds after the `fault`."""
    figure = new_figure(path.stem, width=_WIDTH * len(panels), height=_HEIGHT)
    until = time.time()
    row = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (uid, title) in zip(row, panels, strict=True):
        dashboard, panel = find_panel(uid, title)
        scale, unit = _UNITS.get(panel.unit, _OTHER_UNIT)
        drawn = 0
        for legend, times, values in _lines(prometheus, dashboard, panel, since, until):
            at, scaled = [each - fault for each in times], [scale * each for each in values]
            style = _STYLES[drawn % len(_STYLES)]  # lines that lie upon each other are seen
            axes.plot(at, scaled, style, label=legend or None, linewidth=1.4)
            drawn += 1
        _frame(axes, since - fault, until - fault)
        axes.set_title(title, fontsize="small")
        if not drawn:
            axes.text(0.5, 0.5, "No data", transform=axes.transAxes, ha="center", color="0.5")
        legends = drawn > 0 and any(query.legend for query in panel.queries)
        finish_axes(axes, "seconds after the fault", unit, legend=legends)
    save_figure(figure, path)


def _lines(
    prometheus: Prometheus, dashboard: Dashboard, panel: Panel, since: float, until: float
) -> Iterator[tuple[str, list[float], list[float]]]:
    for query in panel.queries:
        expr = filled_in(dashboard, query.expr, _WINDOW)
        for series in prometheus.query_range(expr, since=since, until=until, step=_STEP):
            points = [(float(at), float(value)) for at, value in series["values"]]
            times, values = ([point[part] for point in points] for part in (0, 1))
            yield legend_of(query, series["metric"]), times, values


def _frame(axes: Any, begin: float, end: float) -> None:
    axes.set_xlim(begin, end)
    axes.axvline(0.0, color="C3", linestyle="--", linewidth=1)
    low, high = axes.get_ylim()
    axes.set_ylim(min(0.0, low), 1.05 * high)
    axes.tick_params(labelsize="small")


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
