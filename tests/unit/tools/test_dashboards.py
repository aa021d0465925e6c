"""Dashboards are generated, ask for declared metrics, and say what to do."""

import json
import re

import pytest

from tests.support.promql import check_query
from tools.monitoring.dashboards.every import DASHBOARDS
from tools.monitoring.files import DASHBOARD_FOLDER, generated
from tools.monitoring.grafana import Dashboard, Panel

PANELS = [(each, panel) for each in DASHBOARDS for panel in each.panels()]
_ALL = [f"{dashboard.uid}: {panel.title}" for dashboard, panel in PANELS]


def test_what_is_committed_is_what_the_generator_writes() -> None:
    files = generated()

    assert [path.name for path, content in files.items() if path.read_bytes() != content] == []
    assert set(DASHBOARD_FOLDER.glob("*.json")) == {p for p in files if p.suffix == ".json"}


@pytest.mark.parametrize(("dashboard", "panel"), PANELS, ids=_ALL)
def test_a_panel_asks_for_declared_metrics_and_says_what_to_do(
    dashboard: Dashboard, panel: Panel
) -> None:
    assert panel.description.endswith(".")
    assert panel.queries

    for query in panel.queries:
        check_query(query.expr)
        assert len(panel.queries) == 1 or query.legend
        used = set(re.findall(r"\$(\w+)", query.expr)) - {"__rate_interval"}
        assert used <= {variable.name for variable in dashboard.variables}
        for label in re.findall(r"{{(\w+)}}", query.legend):
            assert label in query.expr or "by (" not in query.expr


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=[each.uid for each in DASHBOARDS])
def test_panels_do_not_overlap_and_dashboards_link_to_each_other(dashboard: Dashboard) -> None:
    document = json.loads((DASHBOARD_FOLDER / f"{dashboard.uid}.json").read_bytes())

    taken: set[tuple[int, int]] = set()
    for panel in document["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert [each["id"] for each in document["panels"]] == list(
        range(1, len(document["panels"]) + 1)
    )
    assert document["links"][0]["tags"] == document["tags"]


def test_variables_ask_for_labels_that_exist() -> None:
    for dashboard in DASHBOARDS:
        for variable in dashboard.variables:
            if variable.metric:
                check_query(f"sum by ({variable.label}) ({variable.metric})")
