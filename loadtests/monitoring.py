"""Checks the queries of dashboards, rules and KEDA on a real Prometheus."""

import asyncio
import contextlib
import itertools
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from string import Template
from typing import Any  # Any: JSON

import click
import msgspec

from loadtests.backend import RunningBackend, backend, calls
from loadtests.generator import closed_loop
from loadtests.measured import demo_models, target_of
from loadtests.open_loop import run_open
from loadtests.report import Line, show
from loadtests.workload import sentences
from testing.manifests import of_kind, render
from testing.model_repository import WORDS, write_repository
from testing.prometheus import Prometheus, running_prometheus, scrapes_of
from testing.replicas import Scaling, read_scaling
from testing.system import TWO_REGIONS, System
from testing.waiting import wait_until
from tools.monitoring.dashboards.every import DASHBOARDS
from tools.monitoring.files import RULES
from tools.monitoring.rules import groups

_INTERVAL = "20s"
"""Replaces Grafana's rate interval in queries."""
_RATE = 30.0
_OVERLAY, _REGION = "production/eu", "eu"
_LOADED, _IDLE, _EMPTY = "sentiment", "minilm", "sentiment-overflow"
_BACKENDS = {_LOADED: 2, _IDLE: 2}
_PACED = {
    "provider": "paced",
    "threads": "1",
    "paced_token": "0.005",  # seconds: a sentence takes about a tenth of a second
    "row_cache_bytes": "0",
}
_CONNECTIONS = 64
"""The number of rows that a loaded backend has at a time: one batch runs, all others wait."""


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


@click.command("scaling")
@click.option("--idle", default=5.0, show_default=True, help="Seconds of the idle phase.")
@click.option("--loaded", default=20.0, show_default=True, help="Seconds of the loaded phase.")
def scaling_command(*, idle: float, loaded: float) -> None:
    """Compare the results of KEDA's queries with the same averages computed from samples.

    Backends whose batches take set times represent the pools of an overlay. First all backends are
    idle, then two of them are loaded. Prometheus scrapes the backends with the labels that the
    PodMonitor sets, and answers the queries of the rendered ScaledObjects.
    """
    found = of_kind(render(_OVERLAY), "ScaledObject").values()
    pools = {each.target.removeprefix("backend-"): each for each in map(read_scaling, found)}
    with demo_models() as models, contextlib.ExitStack() as stack:
        running = {
            pool: [stack.enter_context(backend(models, **_PACED)) for _ in range(count)]
            for pool, count in _BACKENDS.items()
        }
        prometheus = stack.enter_context(running_prometheus([_scrape(running)]))
        up, every = "count(up == 1)", float(sum(_BACKENDS.values()))
        wait_until(lambda: prometheus.value(up) == every, what="all are scraped")
        time.sleep(idle)
        lines, problems = _compare("idle", prometheus, pools, {_LOADED: 2, _EMPTY: 0})
        asyncio.run(_load(running[_LOADED], loaded))
        more, others = _compare("loaded", prometheus, pools, {_LOADED: 20, _IDLE: 2})
    show("Scaling", lines + more)
    if problems or others:
        sys.exit("\n".join(problems + others))


async def _load(running: Sequence[RunningBackend], duration: float) -> None:
    bodies = itertools.cycle(calls(sentences(2000, seed=1), running[0].model("sentiment")))
    loops = (
        closed_loop(each.target, bodies, connections=_CONNECTIONS, duration=duration)
        for each in running
    )
    await asyncio.gather(*loops)


def _scrape(running: Mapping[str, Sequence[RunningBackend]]) -> dict[str, Any]:
    """Return a scrape configuration with the backends, and the labels that the PodMonitor sets."""
    targets = [
        {
            "targets": [f"127.0.0.1:{each.port}" for each in backends],
            "labels": {"sluicegate_region": _REGION, "sluicegate_pool": pool},
        }
        for pool, backends in running.items()
    ]
    return {"job_name": "backend", "static_configs": targets}


def _compare(
    phase: str,
    prometheus: Prometheus,
    pools: Mapping[str, Scaling],
    expected: Mapping[str, int],
) -> tuple[list[Line], list[str]]:
    """Return results and replica counts, and their differences from the expected values."""
    lines: list[Line] = []
    problems: list[str] = []
    now = time.time()
    for pool, scaling in pools.items():
        current = _BACKENDS.get(pool, 0)
        answers = {each.name: _answer(prometheus, each.query, now) for each in scaling.triggers}
        replicas = scaling.replicas(answers, current)
        for trigger in scaling.triggers:
            answer, by_hand = answers[trigger.name], _by_hand(prometheus, trigger.query, now)
            line = {"phase": phase, "pool": pool, "trigger": trigger.name, "answer": answer}
            wanted = trigger.replicas(answer, current)
            lines.append(line | {"by hand": by_hand, "wants": wanted, "replicas": replicas})
            if abs(answer - by_hand) > 1e-9 * max(1.0, by_hand):
                problems.append(f"{phase}: {pool}: {trigger.name}: {answer} is not {by_hand}")
        if replicas != expected.get(pool, replicas):
            problems.append(f"{phase}: {pool}: {replicas} replicas, not {expected[pool]}")
    return lines, problems


def _answer(prometheus: Prometheus, query: str, now: float) -> float:
    """Return the result of a query as KEDA reads it: one number, 0 if there is no result."""
    result = prometheus.query(query, now)
    return float(result[0]["value"][1]) if result else 0.0


def _by_hand(prometheus: Prometheus, query: str, now: float) -> float:
    """Compute the result of a query from samples: the sum of the averages of its series."""
    selector = query.removeprefix("sum(avg_over_time(").removesuffix("))")
    stored = prometheus.query(selector, now)
    return sum(fmean(float(value) for _, value in each["values"]) for each in stored)
