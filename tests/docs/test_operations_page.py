"""docs/operations.md tells of every metric, command and exit code."""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
import pytest
from prometheus_client import CollectorRegistry, Metric

from backends.otlp_statistics import TracingStatistics
from backends.plans import ArmStatistics
from backends.telemetry.metrics import BackendMetrics
from backends.types import (
    EncoderStatistics,
    QueueStatistics,
    RowStatistics,
    ShadowStatistics,
    Snapshot,
)
from gateway.app.stats_reporter import WorkerStatistics
from gateway.cli.root import main
from gateway.supervisor.errors import ExitCode
from gateway.telemetry.metrics import GatewayMetrics
from gateway.telemetry.restarts import RestartCounts
from gateway.telemetry.restarts_collector import RestartsCollector
from gateway.types import ArmUsage
from tests.docs.tables import ROOT, page, rows

PAGE = page("docs/operations.md")
_PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_METRIC = re.compile(r"`(sluicegate_[a-z_]+)(\{[^}`]*\})?`")
_QUEUE = QueueStatistics(releases={"full": 1})
_ARM = ArmStatistics(
    model="sentiment", arm="1", outcomes={"done": 1}, durations={9: 1}, labels={"positive": 1}
)
_ENCODER = EncoderStatistics(name="minilm", queue=_QUEUE, rows=RowStatistics())


def labels(metric: Metric) -> set[str]:
    return {name for sample in metric.samples for name in sample.labels} - {"le"}


def commands(group: click.Group, path: str) -> Iterator[str]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}"


def routes(folder: str) -> Iterator[str]:
    """Yield the routes that the decorators in `folder` declare, as `GET /path/{name}`."""
    for path in sorted((ROOT / folder).glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        yield from _routes(tree, "")
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                yield from _routes(node, _prefix(node))


def _prefix(controller: ast.ClassDef) -> str:
    values = (n.value for n in controller.body if isinstance(n, ast.Assign) and _name(n) == "path")
    return str(next((v.value for v in values if isinstance(v, ast.Constant)), ""))


def _name(assignment: ast.Assign) -> str:
    return ast.unparse(assignment.targets[0])


def _routes(body: ast.Module | ast.ClassDef, prefix: str) -> Iterator[str]:
    for node in body.body:
        for made in getattr(node, "decorator_list", []):
            if isinstance(made, ast.Call) and made.args and isinstance(made.args[0], ast.Constant):
                verb, path = ast.unparse(made.func), f"{prefix}{made.args[0].value!s}"
                if verb in {"get", "post", "put", "delete"}:
                    plain = re.sub(r":\w+}", "}", path)
                    yield f"{verb.upper()} {plain.rstrip('/')}"


def backend_metrics() -> list[Metric]:
    """Return all metrics of a backend, each with a sample."""
    shadows = ShadowStatistics(
        outcomes={("sentiment", "1", "next", "same"): 1},
        largest={("sentiment", "1", "next"): 0.1},
    )
    snapshot = Snapshot(
        ready=True,
        calls_in_flight=0,
        items={("sentiment", "classify", "done"): 1},
        encoders=[_ENCODER],
        shadows=shadows,
        arms=[_ARM],
        lost_hosts={("mood", "ended"): 1},
    )
    return list(BackendMetrics(lambda: snapshot, TracingStatistics).collect())


def gateway_metrics(folder: Path) -> list[Metric]:
    """Return all metrics of a gateway machine, each with a sample."""
    registry = CollectorRegistry()
    metrics = GatewayMetrics(registry)
    metrics.request("classify", 200, 0.1)
    metrics.items("sentiment", "hit", 1)
    metrics.arm_items("sentiment", ArmUsage(arm="1", hit=1))
    metrics.work("sentiment", rows=1, tokens=9)
    metrics.rate_limited("minute")
    metrics.shadowed("minute")
    metrics.statistics("cache", WorkerStatistics(tasks=1))
    metrics.flush()
    RestartCounts(folder).add("gateway", "ended")
    registry.register(RestartsCollector(folder))
    return list(registry.collect())


def assert_documented(metrics: Iterable[Metric]) -> None:
    rows_by_name = {row[0].strip("`"): row for row in rows(PAGE) if len(row) == 3}
    for metric in metrics:
        assert metric.samples, metric.name
        written = {label.strip() for label in rows_by_name[metric.name][1].split(",")} - {""}
        assert labels(metric) == written, metric.name


def test_every_metric_of_a_backend_is_told_with_its_labels() -> None:
    metrics = backend_metrics()

    assert len(metrics) > 10
    assert_documented(metrics)


def test_every_metric_of_a_gateway_is_told_with_its_labels(tmp_path: Path) -> None:
    assert_documented(gateway_metrics(tmp_path))


def test_no_page_names_a_metric_or_label_that_does_not_exist(tmp_path: Path) -> None:
    known = {m.name: labels(m) for m in [*backend_metrics(), *gateway_metrics(tmp_path)]}

    named = [match for path in _PAGES for match in _METRIC.findall(path.read_text("utf-8"))]

    assert len({name for name, _ in named}) >= len(known)
    for name, selector in named:
        metric = name if name in known else re.sub(r"_(total|bucket|sum|count)$", "", name)
        assert set(re.findall(r"(\w+)=", selector)) <= known[metric], name


@pytest.mark.parametrize("command", sorted(commands(main, "sluicegate")))
def test_every_command_is_told(command: str) -> None:
    words = [cell for row in rows(PAGE) for cell in re.findall(r"`(.+?)`", row[0])]
    head, _, last = command.rpartition(" ")

    # A row tells of `sluicegate config check`, and then of `show` alone.
    beside = any(word.startswith(f"{head} ") for word in words) and last in words
    assert any(word.startswith(command) for word in words) or beside


def test_every_exit_code_is_told() -> None:
    codes = {row[0] for row in rows(PAGE)}

    assert {str(code.value) for code in ExitCode} <= codes


@pytest.mark.parametrize("route", sorted(routes("gateway/admin")))
def test_every_route_of_operators_is_told(route: str) -> None:
    assert route in {word for row in rows(PAGE) for word in re.findall(r"`(.+?)`", row[0])}


def test_the_page_tells_of_no_route_that_does_not_exist() -> None:
    words = {word for row in rows(PAGE) for word in re.findall(r"`(.+?)`", row[0])}

    assert {w for w in words if " /" in w} == set(routes("gateway/admin"))


@pytest.mark.parametrize("route", sorted(routes("gateway/api")))
def test_every_route_of_customers_is_told_somewhere(route: str) -> None:
    path = route.partition(" ")[2]

    part_of_the_page = path.startswith("/docs/")
    assert part_of_the_page or path in page("docs/api.md") + PAGE
