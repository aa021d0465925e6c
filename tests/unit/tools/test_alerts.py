"""Alerts ask for declared metrics, fire when they should, and have a page each."""

import re
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest
import yaml

from sluicegate.gateway.settings import process_environment
from tests.docs.tables import ROOT
from tests.support.promql import check_query
from tools.monitoring.files import ALERTMANAGER, RULES
from tools.monitoring.rules import Group, Rule, alerts, groups

PAGES = ROOT / "docs/runbooks"
ALERTS = {alert.name: alert for alert in alerts()}
_STEPS = {"30s": 30, "2m": 240, "30m": 10_000}
"""How often rules are evaluated in a test, by the most minutes that it lasts."""


class Case(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Series after which an alert fires, or stays quiet; a value each minute, as promtool reads."""

    alert: str
    at: str
    quiet_at: str = ""
    labels: dict[str, str] = {}
    """Of the alert that fires, besides its name and severity."""
    fires: dict[str, str | int]
    quiet: dict[str, str | int]


CASES = msgspec.yaml.decode((ROOT / "tests/deploy/alerts.yaml").read_bytes(), type=list[Case])


def run(tool: str, *arguments: str | Path, folder: Path) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    command = [tool, *map(str, arguments)]
    # Collecting garbage takes half of promtool's time; the limit bounds what is not collected.
    environment = {**process_environment(), "GOGC": "off", "GOMEMLIMIT": "1GiB"}
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_ask_for_declared_metrics_and_labels() -> None:
    for group in groups():
        for rule in group.rules:
            check_query(rule.expr)


def test_an_annotation_uses_labels_that_the_alert_has() -> None:
    for case in CASES:
        annotations = ALERTS[case.alert].annotations
        text = annotations["summary"] + annotations["description"]
        assert set(re.findall(r"\$labels\.(\w+)", text)) <= set(case.labels), case.alert
        assert "{{" not in re.sub(r"\{\{ \$labels\.\w+ \}\}", "", text), case.alert


@pytest.mark.system
def test_promtool_finds_the_rules_valid() -> None:
    run("promtool", "check", "rules", RULES, folder=ROOT)


def test_every_alert_has_a_case() -> None:
    assert [case.alert for case in CASES] == list(ALERTS)


@pytest.mark.system
def test_each_alert_fires_and_does_not_fire(tmp_path: Path) -> None:
    for case in CASES:
        _write_promtool_test(case, tmp_path)

    run("promtool", "test", "rules", *sorted(tmp_path.glob("*.test.yaml")), folder=tmp_path)


def _write_promtool_test(case: Case, folder: Path) -> None:
    """Write the alert alone with what it needs: promtool evaluates every rule at every step."""
    alert = ALERTS[case.alert]
    needed = [g for g in groups() if any(r.record and r.record in alert.expr for r in g.rules)]
    rules = {"groups": [*needed, Group("alert", [alert])]}
    (folder / f"{alert.name}.rules.yaml").write_bytes(msgspec.yaml.encode(rules))
    minutes = int(case.at.removesuffix("m"))
    document = {
        "rule_files": [f"{alert.name}.rules.yaml"],
        "evaluation_interval": next(step for step, most in _STEPS.items() if minutes <= most),
        # Else in any order: an alert would see what was recorded a step before, or nothing.
        "group_eval_order": [group.name for group in rules["groups"]],
        "tests": [
            _promtool_test(case.fires, case.at, alert, case.labels),
            _promtool_test(case.quiet, case.quiet_at or case.at, alert, None),
        ],
    }
    (folder / f"{alert.name}.test.yaml").write_text(yaml.safe_dump(document))


def _promtool_test(
    series: dict[str, str | int], at: str, alert: Rule, firing: dict[str, str] | None
) -> dict[str, object]:
    labels = {"alertname": alert.name, "alertstate": "firing", **alert.labels, **(firing or {})}
    matchers = ", ".join(f'{name}="{value}"' for name, value in labels.items())
    query = f'ALERTS{{alertname="{alert.name}", alertstate="firing"}}'
    samples = [] if firing is None else [{"labels": f"ALERTS{{{matchers}}}", "value": 1}]
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": str(v)} for name, v in series.items()],
        "promql_expr_test": [{"expr": query, "eval_time": at, "exp_samples": samples}],
    }


@pytest.mark.system
def test_amtool_finds_the_inhibition_rules_valid() -> None:
    run("amtool", "check-config", ALERTMANAGER, folder=ROOT)


def test_an_inhibition_is_between_alerts_that_have_the_labels_it_compares() -> None:
    """Alertmanager takes a label that neither has for equal: it would inhibit everywhere."""
    labels = {case.alert: set(case.labels) for case in CASES}

    for rule in yaml.safe_load(ALERTMANAGER.read_bytes())["inhibit_rules"]:
        (source,) = re.findall(r'alertname="(\w+)"', rule["source_matchers"][0])
        (targets,) = re.findall(r'alertname=~"([\w|]+)"', rule["target_matchers"][0])
        assert source not in targets.split("|")
        for name in (source, *targets.split("|")):
            assert set(rule["equal"]) <= labels[name]


def test_every_alert_has_a_page_and_every_page_an_alert() -> None:
    pages = {f"docs/runbooks/{path.name}" for path in PAGES.glob("*.md")}

    named = {alert.annotations["runbook_url"] for alert in ALERTS.values()}

    assert pages - {"docs/runbooks/README.md"} == named


def test_a_page_has_the_name_and_severity_of_its_alert() -> None:
    for alert in ALERTS.values():
        page = (ROOT / alert.annotations["runbook_url"]).read_text("utf-8")
        assert page.startswith(f"# {alert.name}\n")
        assert f"Severity: {alert.labels['severity']}" in page, alert.name


def test_the_list_of_pages_names_each() -> None:
    page = (PAGES / "README.md").read_text("utf-8")

    assert re.findall(r"\]\((\w+)\.md\)", page) == list(ALERTS)
