"""Renders dashboards as the JSON that Grafana reads."""

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

Unit = Literal[
    "s", "reqps", "ops", "percentunit", "bytes", "watt", "short", "none", "dateTimeFromNow"
]
Kind = Literal["timeseries", "stat", "table"]
SOURCE = {"type": "prometheus", "uid": "prometheus"}
TAG = "sluicegate"
_COLUMNS, _HEIGHT = 24, 8
_SCHEMA = 39


class Query(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A PromQL expression and the legend of its series."""

    expr: str
    legend: str = ""


class Panel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A panel; its description says what to do when its value changes."""

    title: str
    unit: Unit
    queries: tuple[Query, ...]
    description: str
    kind: Kind = "timeseries"
    width: int = 12
    stacked: bool = False
    thresholds: tuple[float, ...] = ()
    """The values from which the panel is amber, and from which it is red."""
    may_be_empty: bool = False
    """Whether the panel may be empty, for example because the system has no GPUs or no failures."""


class Row(msgspec.Struct, frozen=True):
    """A titled row of panels."""

    title: str
    panels: tuple[Panel, ...]


class Variable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A template variable. Viewers choose a label's value or, if `default` is set, a number."""

    name: str
    metric: str = ""
    label: str = ""
    default: str = ""
    text: str = ""


class Dashboard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A dashboard; `uid` is part of its address and names its file."""

    uid: str = ""
    title: str
    description: str
    rows: tuple[Row, ...]
    variables: tuple[Variable, ...] = ()
    since: str = "now-3h"

    def panels(self) -> Iterator[Panel]:
        """Yield the panels of all rows."""
        for row in self.rows:
            yield from row.panels


def render(dashboard: Dashboard) -> bytes:
    """Return the dashboard as indented JSON."""
    document = {
        "uid": f"sluicegate-{dashboard.uid}",
        "title": f"Sluicegate: {dashboard.title}",
        "description": dashboard.description,
        "tags": [TAG],
        "schemaVersion": _SCHEMA,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": dashboard.since, "to": "now"},
        "links": [_link()],
        "templating": {"list": [_variable(each) for each in dashboard.variables]},
        "panels": list(_placed(dashboard.rows)),
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def _link() -> dict[str, object]:
    """Return the links to the other dashboards, which keep the time range and variables."""
    return {
        "type": "dashboards",
        "title": "Sluicegate",
        "tags": [TAG],
        "asDropdown": False,
        "includeVars": True,
        "keepTime": True,
    }


def _variable(each: Variable) -> dict[str, object]:
    common = {"name": each.name, "label": each.text or each.name}
    if each.default:
        chosen = {"text": each.default, "value": each.default}
        return common | {"type": "textbox", "query": each.default, "current": chosen}
    query = f"label_values({each.metric}, {each.label})"
    return common | {
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": each.name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _placed(rows: Iterable[Row]) -> Iterator[dict[str, object]]:
    """Yield rows and panels with their positions, from left to right and downwards."""
    number, y = 1, 0
    for row in rows:
        place = {"x": 0, "y": y, "w": _COLUMNS, "h": 1}
        head = {"id": number, "type": "row", "title": row.title, "collapsed": False}
        yield head | {"gridPos": place, "panels": []}
        number, x, y = number + 1, 0, y + 1
        for panel in row.panels:
            if x + panel.width > _COLUMNS:
                x, y = 0, y + _HEIGHT
            yield _panel(number, panel, {"x": x, "y": y, "w": panel.width, "h": _HEIGHT})
            number, x = number + 1, x + panel.width
        y += _HEIGHT


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, object]:
    steps: list[dict[str, object]] = [{"color": "green", "value": None}]
    for color, value in zip(("orange", "red"), panel.thresholds, strict=False):
        steps.append({"color": color, "value": value})
    defaults: dict[str, object] = {
        "unit": panel.unit,
        "color": {"mode": "thresholds" if panel.kind == "stat" else "palette-classic"},
        "thresholds": {"mode": "absolute", "steps": steps},
    }
    if panel.kind == "timeseries":
        stacking = {"mode": "normal" if panel.stacked else "none", "group": "A"}
        filled = 20 if panel.stacked else 0
        defaults |= {"min": 0, "custom": {"stacking": stacking, "fillOpacity": filled}}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": _options(panel),
        "targets": [_target(panel, *each) for each in zip("ABCDEF", panel.queries, strict=False)],
    }


def _options(panel: Panel) -> dict[str, object]:
    if panel.kind == "stat":
        last = {"calcs": ["lastNotNull"], "fields": "", "values": False}
        return {"reduceOptions": last, "colorMode": "background", "textMode": "auto"}
    if panel.kind == "table":
        return {"showHeader": True, "cellHeight": "sm"}
    legend = {"displayMode": "list", "placement": "bottom", "showLegend": True}
    return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}


def _target(panel: Panel, ref: str, query: Query) -> dict[str, object]:
    target: dict[str, object] = {
        "refId": ref,
        "datasource": SOURCE,
        "expr": query.expr,
        "legendFormat": query.legend,
    }
    if panel.kind == "table":
        target |= {"instant": True, "format": "table"}
    return target
