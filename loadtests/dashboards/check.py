"""Checks all dashboards and rules on a running system: `python -m loadtests dashboards`."""

import asyncio
import itertools
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from loadtests.dashboards.queries import wrong_queries
from loadtests.generator import Target
from loadtests.open_loop import open_loop
from testing.model_repository import WORDS, write_repository
from testing.prometheus import running_prometheus, scrapes_of
from testing.system import TWO_REGIONS, System
from testing.waiting import wait_until
from tools.monitoring.files import RULES

_INTERVAL = "20s"
_RATE = 30.0


@click.command("dashboards")
@click.option("--seconds", default=25.0, show_default=True, help="Of traffic.")
def dashboards_command(*, seconds: float) -> None:
    """Run the query of every panel and rule against a Prometheus that scraped a system."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = write_repository(folder / "models", real=True)
        with System(folder / "data", models=models, arguments=TWO_REGIONS) as system:
            wrong = check(system, seconds=seconds)
    if wrong:
        sys.exit("\n".join(wrong))


def check(system: System, *, seconds: float) -> list[str]:
    """Send traffic, ask every query, and return what is wrong."""
    with running_prometheus(scrapes_of(system), rules=RULES) as prometheus:
        wait_until(lambda: prometheus.value("count(up == 1)") >= 2, what="all are scraped")
        asyncio.run(_traffic(system, seconds))
        return wrong_queries(prometheus, interval=_INTERVAL)


async def _traffic(system: System, seconds: float) -> None:
    """Send texts of which half are repeated."""
    headers = (("authorization", f"Bearer {system.key}"),)
    target = Target(host="127.0.0.1", port=system.port, path="/v1/classify", headers=headers)
    await open_loop(target, bodies("mood"), rate=_RATE, duration=seconds)


def bodies(model: str) -> Iterator[bytes]:
    """Yield bodies of one item, every other one of which repeats an earlier one."""
    for number in itertools.count():
        word = WORDS[number % len(WORDS)]
        text = f"{word} text" if number % 2 else f"the {word} {number}"
        yield msgspec.json.encode({"model": model, "input": text})
