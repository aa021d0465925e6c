"""Checks that four workers together keep tenants' limits, with Redis and without.

Over many connections, every tenant sends requests at three times the rate at which its bucket
refills. The requests admitted in every window are then compared with the limit.
"""

import asyncio
import contextlib
import itertools
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

from gateway.types import Rule
from loadtests.gateway import Gateway, one_backend, running_gateway
from loadtests.generator import OK
from loadtests.open_loop import Answer, open_loop
from loadtests.options import duration
from loadtests.report import Line, show
from loadtests.windows import (
    AdmittedRequest,
    bound,
    bound_ahead,
    local_share,
    most_over_the_limit,
)
from testing.stub_process import stub_process
from testing.valkey import Valkey
from testing.waiting import wait_until

RULE = Rule(name="minute", unit="requests", capacity=100, window=6.0)
"""A burst of 100 requests, and 1,000 requests a minute."""
REFILL = RULE.capacity / RULE.window
OFFERED = 3.0 * REFILL
"""Requests a second that each tenant sends."""
BODY = b'{"model":"stub","input":"a gorgeous, witty, seductive movie"}'
LIMITED = 429
WORKERS, TENANTS, _SHARE = 4, 10, 0.1
# Enough connections that every worker has some of each tenant.
_CONNECTIONS = 24
# Seconds until a worker tries Redis again after a failure, and seconds it waits for an answer.
_BREAKER, _TIMEOUT = 1.0, 1.0


class LimitsResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run; `over` is by how many requests the worst window exceeded its limit.

    - `allowed` is by how many requests that window may exceed the limit. If Redis was killed, it is
      the number that workers may admit on their own. Otherwise, it is `ahead`.
    - `ahead` is the number that workers may admit before Redis answers; 0 if Redis was never late.
    - `share` is the smallest fraction of its limit that a tenant got, or of its requests if these
      were fewer.
    - `other` counts answers that were neither 200 nor 429.
    """

    tenants: list[Line]
    over: float
    allowed: float
    ahead: float
    share: float
    other: int


@click.command()
@duration(180.0, "Seconds of each of two runs.")
@click.option("--away", default=10.0, help="Seconds without Redis in one run.")
def measure(*, duration: float, away: float) -> None:
    """Run once with Redis, and once with Redis killed in the middle; print both results."""
    for title, gone in (("there", 0.0), (f"killed for {away:g} s", away)):
        result = run(duration=duration, away=gone)
        show(
            f"Limits while Redis is {title}",
            result.tenants,
            f"Worst window {result.over:+.2f}; allowed over the limit: {result.allowed:.1f}.",
            f"Answers neither 200 nor 429: {result.other}.",
        )


def run(*, duration: float, away: float) -> LimitsResult:
    """Start a fleet, and return how well its limits were kept; see `run_on`."""
    with running_fleet() as (gateway, state):
        return run_on(gateway, state, duration=duration, away=away)


def run_on(gateway: Gateway, state: Valkey, *, duration: float, away: float) -> LimitsResult:
    """Run for `duration` seconds, `away` of them without Redis; return how limits were kept."""
    # Computed before anything is sent: how long workers may believe that Redis is away.
    unaware = away + _BREAKER + _TIMEOUT if away else 0.0
    by_share = local_share(RULE, share=_SHARE, workers=WORKERS, away=unaware) if away else 0.0
    before = _admissions(gateway)
    answers = asyncio.run(_offer(gateway, state, duration=duration, away=away))
    count = sum(one.status == OK for of_tenant in answers for one in of_tenant)
    by_workers = _admitted_without_redis(gateway, before, count)
    good = [admitted(of_tenant) for of_tenant in answers]
    over = [most_over_the_limit(of_tenant, RULE) for of_tenant in good]
    shares = [
        len(own) / min(len(all_), bound(RULE, _took(all_)))
        for own, all_ in zip(good, answers, strict=True)
    ]
    ahead = bound_ahead(RULE, workers=WORKERS, by_share=by_workers)
    return LimitsResult(
        tenants=[
            {"admitted": len(own), "worst window, over": worst, "of what it may get": share}
            for own, worst, share in zip(good, over, shares, strict=True)
        ],
        over=max(over),
        allowed=max(by_share, ahead),
        ahead=ahead,
        share=min(shares),
        other=sum(one.status not in (OK, LIMITED) for of_tenant in answers for one in of_tenant),
    )


def _took(answers: Sequence[Answer]) -> float:
    return max(one.came for one in answers) - min(one.sent for one in answers)


def admitted(answers: Sequence[Answer]) -> list[AdmittedRequest]:
    """Return the requests that were admitted."""
    return [AdmittedRequest(one.sent, one.came) for one in answers if one.status == OK]


def _admitted_without_redis(gateway: Gateway, before: Counter[str], admitted: int) -> float:
    """Return how many of the `admitted` requests were admitted without an answer from Redis."""
    wait_until(
        lambda: (_admissions(gateway) - before).total() >= admitted,
        what="the workers report what they admitted",
    )
    return (_admissions(gateway) - before)["local_share"]


def _admissions(gateway: Gateway) -> Counter[str]:
    """Return how many requests the workers have admitted so far, by what allowed each admission."""
    registry = CollectorRegistry()
    folder = str(gateway.settings.metrics_dir)
    MultiProcessCollector(registry, path=folder)  # type: ignore[no-untyped-call]
    name, sources = "sluicegate_limit_admissions_total", ("lease", "redis", "local_share")
    return Counter(
        {each: int(registry.get_sample_value(name, {"source": each}) or 0) for each in sources}
    )


@contextlib.contextmanager
def running_fleet(state_timeout: float = _TIMEOUT) -> Iterator[tuple[Gateway, Valkey]]:
    """Run workers with a Redis that the caller can kill.

    On a machine that may stall, workers wait for Redis for a longer `state_timeout`.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        stub_process() as stub,
        Valkey("--appendonly", "yes") as state,
        running_gateway(
            Path(folder) / "gateway",
            one_backend(stub.url) | {"limits": {"local_share": _SHARE}},
            keys={f"tenant-{number}": _key(number) for number in range(TENANTS)},
            rules=(RULE,),
            workers=WORKERS,
            state=state,
            state_timeout=state_timeout,
            batches=False,
            shutdown_delay=0.0,
            max_loop_delay=0.0,  # so that only limits refuse requests, even on a busy machine
        ) as gateway,
    ):
        yield gateway, state


async def _offer(
    gateway: Gateway, state: Valkey, *, duration: float, away: float
) -> list[list[Answer]]:
    async with asyncio.TaskGroup() as group:
        sending = [
            group.create_task(
                open_loop(
                    gateway.target(_key(number)),
                    itertools.repeat(BODY),
                    rate=OFFERED,
                    duration=duration,
                    seed=number,
                    connections=_CONNECTIONS,
                    patience=60.0,
                )
            )
            for number in range(TENANTS)
        ]
        if away:
            await asyncio.sleep((duration - away) / 2)
            state.kill()
            killed = time.monotonic()
            await asyncio.sleep(away)
            await asyncio.to_thread(state.start)
            print(f"Redis was away for {time.monotonic() - killed:.2f} s")
    return [each.result() for each in sending]


def _key(number: int) -> str:
    return f"sk-limits-tenant-{number:02}"
