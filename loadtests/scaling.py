"""Asks a real Prometheus what KEDA would ask it, and compares with numbers computed by hand.

Backends of declared speed stand for pools of an overlay: idle first, then two of them loaded. A
Prometheus scrapes them with the labels that the PodMonitor gives. The queries of the ScaledObjects
are sent to it as they are rendered. The samples it stored, and those that this program scraped
itself meanwhile, are averaged here by a few lines of Python.
"""

import asyncio
import contextlib
import re
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Self  # Any: JSON

import click

from backends.model_tools.demo.build import build_demo_models
from loadtests.backend import RunningBackend, backend, calls
from loadtests.generator import closed_loop
from loadtests.workload import cycle, sentences
from testing.loopback import get
from testing.manifests import of_kind, render
from testing.prometheus import Prometheus, running_prometheus
from testing.replicas import Scaling, read_scaling
from testing.waiting import wait_until

_OVERLAY, _REGION = "production/eu", "eu"
_LOADED, _IDLE = "sentiment", "minilm"
_BACKENDS = {_LOADED: 2, _IDLE: 2}
_TOKEN = 0.005
"""Seconds of a token: a sentence takes about a tenth of one."""
_CONNECTIONS = 64
"""Rows at a time that a loaded backend is asked for: a batch runs, the others wait."""
_METRIC = re.compile(r"avg_over_time\((\w+)\{.*?sluicegate_pool=\"([\w-]+)\"\}\[(\w+)\]\)")
_LIMIT = 0.15
"""How far the averages of two programs that scrape at different moments may be apart."""

Samples = dict[tuple[str, str], list[list[float]]]
"""By metric and pool: the values of each series."""


@click.command("scaling")
@click.option("--idle", default=5.0, show_default=True, help="Seconds without load.")
@click.option("--loaded", default=20.0, show_default=True, help="Seconds of load after that.")
def scaling_command(*, idle: float, loaded: float) -> None:
    """Compare what KEDA's queries give with the same averages computed by hand."""
    found = of_kind(render(_OVERLAY), "ScaledObject").values()
    pools = {each.target.removeprefix("backend-"): each for each in map(read_scaling, found)}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        root = Path(folder)
        build_demo_models(root / "models", print)
        running = {
            pool: [stack.enter_context(_backend(root / "models")) for _ in range(count)]
            for pool, count in _BACKENDS.items()
        }
        prometheus = stack.enter_context(running_prometheus([_scrape(running)]))
        up = "count(up == 1)"
        every = float(sum(_BACKENDS.values()))
        wait_until(lambda: prometheus.value(up) == every, what="all are scraped")
        own = stack.enter_context(_OwnScrapes(running))
        threading.Event().wait(idle)
        problems = _compare("idle", prometheus, pools, own, {_LOADED: 2, "sentiment-overflow": 0})
        asyncio.run(_load(running[_LOADED], loaded))
        wanted = {_LOADED: 20, _IDLE: 2}
        problems += _compare("loaded", prometheus, pools, own, wanted)
    if problems:
        sys.exit("\n".join(problems))


def _backend(models: Path) -> contextlib.AbstractContextManager[RunningBackend]:
    return backend(
        models,
        provider="paced",
        threads="1",
        paced_token=str(_TOKEN),
        row_cache_bytes="0",
    )


async def _load(running: Sequence[RunningBackend], duration: float) -> None:
    info = running[0].model("sentiment")
    bodies = cycle(list(calls(sentences(2000, seed=1), info)))
    loops = (
        closed_loop(each.target, bodies, connections=_CONNECTIONS, duration=duration)
        for each in running
    )
    await asyncio.gather(*loops)


def _scrape(running: Mapping[str, Sequence[RunningBackend]]) -> dict[str, Any]:
    """Return what to scrape: the backends, with the labels that the PodMonitor gives."""
    targets = [
        {
            "targets": [f"127.0.0.1:{each.port}" for each in backends],
            "labels": {"sluicegate_region": _REGION, "sluicegate_pool": pool},
        }
        for pool, backends in running.items()
    ]
    return {"job_name": "backend", "static_configs": targets}


class _OwnScrapes:
    """Reads the backends' metrics pages once a second, beside Prometheus."""

    def __init__(self, running: Mapping[str, Sequence[RunningBackend]]) -> None:
        self._running = running
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._values: dict[tuple[str, str, int, str], list[float]] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()

    def samples(self) -> Samples:
        """Return what was read so far."""
        found: Samples = {}
        for (metric, pool, _, _), values in list(self._values.items()):
            found.setdefault((metric, pool), []).append(list(values))
        return found

    def _run(self) -> None:
        while not self._stop.wait(1.0):
            for pool, backends in self._running.items():
                for each in backends:
                    page = get(f"http://127.0.0.1:{each.port}/metrics").text
                    for metric, labels, value in re.findall(
                        r"^(sluicegate_backend_(?:queued_seconds|device_busy_share))(\S*) (\S+)$",
                        page,
                        re.MULTILINE,
                    ):
                        key = (metric, pool, each.port, labels)
                        self._values.setdefault(key, []).append(float(value))


def _compare(
    phase: str,
    prometheus: Prometheus,
    pools: Mapping[str, Scaling],
    own: _OwnScrapes,
    expected: Mapping[str, int],
) -> list[str]:
    """Print answers and numbers of replicas by all three ways, and return where they differ."""
    problems = []
    now = time.time()
    for pool, scaling in pools.items():
        current = _BACKENDS.get(pool, 0)
        answers = {}
        for trigger in scaling.triggers:
            answer = _query(prometheus, trigger.query, now)
            by_hand = _average(_stored(prometheus, trigger.query, now))
            read = _average(own.samples().get(_asked(trigger.query), []))
            answers[trigger.name] = answer
            print(
                f"{phase:7} {pool:19} {trigger.name:15} Prometheus {answer:7.3f}"
                f"  by hand {by_hand:7.3f}  own scrapes {read:7.3f}"
                f"  / {trigger.threshold:g} -> {trigger.replicas(answer, current)}"
            )
            if abs(answer - by_hand) > 1e-9 * max(1.0, by_hand):
                problems.append(f"{phase}: {pool}: {trigger.name}: {answer} is not {by_hand}")
            if abs(answer - read) > max(0.02, _LIMIT * read):
                problems.append(f"{phase}: {pool}: {trigger.name}: {answer} is far from {read}")
        replicas = scaling.replicas(answers, current)
        print(f"{phase:7} {pool:19} replicas {current} -> {replicas}")
        if replicas != expected.get(pool, replicas):
            problems.append(f"{phase}: {pool}: {replicas} replicas, not {expected[pool]}")
    return problems


def _query(prometheus: Prometheus, query: str, now: float) -> float:
    """Return the answer as KEDA reads it: one number, 0 where there is none."""
    result = prometheus.query(query, now)
    return float(result[0]["value"][1]) if result else 0.0


def _stored(prometheus: Prometheus, query: str, now: float) -> list[list[float]]:
    """Return the samples that a query is about, by series."""
    selector = query.removeprefix("sum(avg_over_time(").removesuffix("))")
    result = prometheus.query(selector, now)
    return [[float(value) for _, value in each["values"]] for each in result]


def _asked(query: str) -> tuple[str, str]:
    """Return the metric and the pool of a query."""
    found = _METRIC.search(query)
    if found is None:
        raise ValueError(f"a query of another form: {query}")
    return found[1], found[2]


def _average(series: Sequence[Sequence[float]]) -> float:
    return sum(fmean(values) for values in series)
