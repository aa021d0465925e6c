"""Alerts ask for declared metrics, fire when they should, and have a page each."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.docs.tables import ROOT
from tests.support.promql import check_query
from tools.monitoring.files import ALERTMANAGER, RULES
from tools.monitoring.inhibitions import INHIBITIONS, Inhibition
from tools.monitoring.rule import Alert
from tools.monitoring.rules import GROUPS, alerts, page_of, rule_file, test_files as files_of_tests

PAGES = ROOT / "docs/runbooks"
ALERTS = alerts()
_NAMES = [alert.name for alert in ALERTS]


def promtool(*arguments: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return run("promtool", *arguments, folder=folder)


def run(tool: str, *arguments: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    command = [tool, *map(str, arguments)]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


def test_rules_ask_for_declared_metrics_and_labels() -> None:
    for group in GROUPS:
        for rule in group.rules:
            check_query(rule.expr)


def test_names_of_alerts_are_unique() -> None:
    assert len(_NAMES) == len(set(_NAMES))


@pytest.mark.parametrize("alert", ALERTS, ids=_NAMES)
def test_an_annotation_uses_labels_that_the_alert_has(alert: Alert) -> None:
    text = alert.summary + alert.description

    assert set(re.findall(r"\$labels\.(\w+)", text)) <= set(alert.fires.labels)
    assert "{{" not in re.sub(r"\{\{ \$labels\.\w+ \}\}", "", text)


@pytest.mark.system
def test_promtool_finds_the_rules_valid() -> None:
    done = promtool("check", "rules", RULES, folder=ROOT)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.system
def test_every_alert_fires_and_does_not_fire(tmp_path: Path) -> None:
    files = files_of_tests()
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)

    tests = [name for name in files if name.endswith(".test.yaml")]
    done = promtool("test", "rules", *tests, folder=tmp_path)

    assert len(tests) == len(ALERTS)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.system
def test_amtool_finds_the_inhibition_rules_valid() -> None:
    done = run("amtool", "check-config", ALERTMANAGER, folder=ROOT)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("inhibition", INHIBITIONS, ids=[each.source for each in INHIBITIONS])
def test_an_inhibition_is_between_alerts_that_have_the_labels_it_compares(
    inhibition: Inhibition,
) -> None:
    """Alertmanager takes a label that neither has for equal: it would inhibit everywhere."""
    by_name = {alert.name: alert for alert in ALERTS}

    for name in (inhibition.source, *inhibition.targets):
        assert set(inhibition.equal) <= set(by_name[name].fires.labels)
    assert inhibition.source not in inhibition.targets


def test_an_alert_names_a_page_that_is_there_unless_an_address_is_given() -> None:
    assert all((ROOT / url).is_file() for url in _runbooks(rule_file()))
    given = _runbooks(rule_file("https://docs.example.com/runbooks/{alert}.html"))

    assert given == [f"https://docs.example.com/runbooks/{name}.html" for name in _NAMES]


def _runbooks(rules: bytes) -> list[str]:
    found = re.findall(r"runbook_url: (\S+)", rules.decode())
    assert len(found) == len(ALERTS)
    return found


def test_every_alert_has_a_page_and_every_page_an_alert() -> None:
    pages = {path.name for path in PAGES.glob("*.md")} - {"README.md"}

    assert pages == set(map(page_of, ALERTS))


@pytest.mark.parametrize("alert", ALERTS, ids=_NAMES)
def test_a_page_has_the_severity_of_its_alert(alert: Alert) -> None:
    page = (PAGES / page_of(alert)).read_text("utf-8")

    assert page.startswith(f"# {alert.name}\n")
    assert f"Severity: {alert.severity}" in page


def test_the_list_of_pages_names_each() -> None:
    page = (PAGES / "README.md").read_text("utf-8")

    assert re.findall(r"\]\((\w+)\.md\)", page) == _NAMES
