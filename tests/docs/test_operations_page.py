"""The pages for operators have every command and exit code, and name real metrics."""

import re

from sluicegate.bulk.ray_stage import sluicegate_stage
from sluicegate.gateway.cli.examples import all_commands
from sluicegate.gateway.cli.root import main
from sluicegate.gateway.supervisor.errors import ExitCode
from tests.docs.tables import ROOT, page, rows
from tools.reference.metrics_page import declared_metrics

PAGE = page("docs/operations/commands.md")
_PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_METRIC = re.compile(r"`(sluicegate_[a-z_]+)(\{[^}`]*\})?`")


def test_no_page_names_a_metric_or_label_that_does_not_exist() -> None:
    declared = declared_metrics()
    known = {name: set(metric.labels) for name, metric in declared.items()}

    found = [match for path in _PAGES for match in _METRIC.findall(path.read_text("utf-8"))]
    named = [match for match in found if match[0] != sluicegate_stage.__name__]

    assert len({name for name, _ in named}) >= len(known)
    for name, selector in named:
        metric = name if name in known else re.sub(r"_(bucket|sum|count)$", "", name)
        assert set(re.findall(r"(\w+)=", selector)) <= known[metric], name


def test_every_command_is_in_the_reference() -> None:
    told = re.findall(r"^## (.+)$", page("docs/reference/commands.md"), re.MULTILINE)

    assert {f"sluicegate {name}" for name, _ in all_commands(main)} <= set(told)


def test_every_exit_code_is_told() -> None:
    codes = {row[0] for row in rows(PAGE)}

    assert {str(code.value) for code in ExitCode} <= codes
