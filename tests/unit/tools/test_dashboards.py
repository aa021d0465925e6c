"""Dashboards are generated, ask for declared metrics, and say what to do."""

import re

import pytest

from tests.support.promql import check_query
from tools.monitoring.__main__ import generated
from tools.monitoring.dashboards.every import DASHBOARDS
from tools.monitoring.files import DASHBOARD_FOLDER
from tools.monitoring.grafana import Dashboard


def test_what_is_committed_is_what_the_generator_writes() -> None:
    files = generated()

    assert [path.name for path, content in files.items() if path.read_bytes() != content] == []
    assert set(DASHBOARD_FOLDER.glob("*.json")) == {p for p in files if p.suffix == ".json"}


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=[each.uid for each in DASHBOARDS])
def test_panels_ask_for_declared_metrics_and_say_what_to_do(dashboard: Dashboard) -> None:
    names = {variable.name for variable in dashboard.variables}
    for panel in dashboard.panels():
        assert panel.description.endswith("."), panel.title
        assert panel.queries, panel.title
        for query in panel.queries:
            check_query(query.expr)
            assert len(panel.queries) == 1 or query.legend, panel.title
            assert set(re.findall(r"\$(\w+)", query.expr)) <= {*names, "__rate_interval"}
            for label in re.findall(r"{{(\w+)}}", query.legend):
                assert label in query.expr or "by (" not in query.expr


def test_variables_ask_for_labels_that_exist() -> None:
    for dashboard in DASHBOARDS:
        for variable in dashboard.variables:
            if variable.metric:
                check_query(f"sum by ({variable.label}) ({variable.metric})")
