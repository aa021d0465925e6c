"""Checks the queries of dashboards and rules on a real Prometheus."""

import itertools
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from string import Template

import click
import msgspec

from loadtests.measured import target_of
from loadtests.open_loop import run_open
from testing.model_repository import WORDS, write_repository
from testing.prometheus import Prometheus, running_prometheus, scrapes_of
from testing.system import TWO_REGIONS, System
from testing.waiting import wait_until
from tools.monitoring.dashboards.every import DASHBOARDS
from tools.monitoring.files import RULES
from tools.monitoring.rules import groups

_INTERVAL = "20s"
"""Replaces Grafana's rate interval in queries."""
_RATE = 30.0


@click.command("dashboards")
@click.option("--seconds", default=25.0, show_default=True, help="Seconds of traffic.")
def dashboards_command(*, seconds: float) -> None:
    """Run the query of every panel and rule against a Prometheus that scraped a system."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = write_repository(folder / "models", real=True)
        with System(folder / "data", models=models, arguments=TWO_REGIONS) as system:
            wrong = check(system, model="mood", seconds=seconds)
    if wrong:
        sys.exit("\n".join(wrong))


def check(system: System, *, model: str, seconds: float) -> list[str]:
    """Send traffic to a classifier and run every query.

    Return the queries that fail, and the queries that return no data now although they return data
    on every healthy system.
    """
    with running_prometheus(scrapes_of(system), rules=RULES) as prometheus:
        wait_until(lambda: prometheus.value("count(up == 1)") >= 2, what="all are scraped")
        run_open(target_of(system), _bodies(model), rate=_RATE, duration=seconds)
        queries = [*_queries()]
        found = [(name, needs_data, *_ask(prometheus, q)) for name, q, needs_data in queries]
    print(f"{len(queries)} queries, {sum(series > 0 for _, _, series, _ in found)} with data")
    return [
        f"{name}: {error or 'no data'}"
        for name, needs_data, series, error in found
        if error or (needs_data and not series)
    ]


def _bodies(model: str) -> Iterator[bytes]:
    """Yield bodies of one item; every second body repeats an earlier body."""
    for number in itertools.count():
        word = WORDS[number % len(WORDS)]
        text = f"{word} text" if number % 2 else f"the {word} {number}"
        yield msgspec.json.encode({"model": model, "input": text})


def _queries() -> Iterator[tuple[str, str, bool]]:
    """Yield the source of each query, its text, and whether it must return data."""
    for dashboard in DASHBOARDS:
        # Grafana fills in these variables: all values, and the defaults of numbers.
        values = {each.name: each.default or ".*" for each in dashboard.variables}
        values["__rate_interval"] = _INTERVAL
        for panel in dashboard.panels():
            for query in panel.queries:
                text = Template(query.expr).substitute(values)
                yield f"{dashboard.uid}: {panel.title}", text, not panel.may_be_empty
    for group in groups():
        for rule in group.rules:
            yield f"{group.name}: {rule.name}", rule.expr, bool(rule.record)


def _ask(prometheus: Prometheus, query: str) -> tuple[int, str]:
    """Return the number of series that a query gives, and the error if the query failed."""
    try:
        return len(prometheus.query(query)), ""
    except ValueError as error:
        return 0, f"{error} in {query}"
