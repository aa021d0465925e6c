"""Checks that gateways keep tenants' limits: four workers without Redis, and two regions.

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
from math import inf, isinf
from pathlib import Path
from typing import Any  # Any: settings of all types

import click
import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

from loadtests.gateway import Gateway, add_tenants, one_backend, running_gateway
from loadtests.generator import OK, Answer
from loadtests.open_loop import open_loop
from loadtests.options import duration
from loadtests.report import Line, show
from loadtests.windows import (
    AdmittedRequest,
    bound,
    bound_ahead,
    local_share,
    most_over_the_limit,
)
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.types import Rule
from testing.stub_process import stub_process
from testing.valkey import Valkey
from testing.waiting import wait_until

RULE = Rule(name="minute", unit="requests", capacity=100, window=6.0)
"""A burst of 100 requests, and 1,000 requests a minute."""
WORKERS, TENANTS = 4, 10
_REFILL = RULE.capacity / RULE.window
_OFFERED = 3.0 * _REFILL
"""Requests a second that each tenant sends."""
_BODY = b'{"model":"stub","input":"a gorgeous, witty, seductive movie"}'
_LIMITED = 429
# Enough connections that every worker has some of each tenant.
_CONNECTIONS = 24
_SHARE = 0.1
"""The share of a limit that a worker may admit while Redis is away."""
# Seconds until a worker tries Redis again after a failure, and seconds it waits for an answer.
_BREAKER, _TIMEOUT = 1.0, 1.0
_SETTINGS: dict[str, Any] = {
    "batches": False,
    "shutdown_delay": 0.0,
    "max_loop_delay": 0.0,  # so that only limits refuse requests, even on a busy machine
}
_REGIONS = ("eu", "us")
_DEMANDS = ((0.5, 0.5), (1.0, 0.0), (0.0, 1.0))
"""The share of all requests that goes to each region, phase by phase."""
_LEASE_ENDS, _ROUNDS = 2.0, 2.0
"""Seconds after the end of a lost region's lease for which the other region does not use the lost
region's share, and seconds until it then has the whole limit."""
_PART = 2.0
"""Seconds of load after which the run checks whether a lost region's share is in use."""


class LimitsResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run; `over` is by how many requests the worst window exceeded its limit.

    - `allowed` is by how many requests that window may exceed the limit. If Redis was killed, it is
      the number that workers may admit on their own. Otherwise, it is `ahead`.
    - `ahead` is the number that workers may admit before Redis answers; 0 if Redis was never late.
    - `share` is the smallest fraction of its limit that a tenant got, or of its requests if these
      were fewer.
    - `other` counts answers that were neither 200 nor 429.
    """

    over: float
    allowed: float
    ahead: float
    share: float
    other: int


class RegionsResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run. `over` is the excess of the worst window, summed over both regions.

    - `other` counts answers other than 200 and 429 from regions that were not killed.
    - `took` is the time in seconds from the loss of a region until the other region admits the
      whole limit, and `allowed` is its allowed maximum.
    """

    phases: list[Line]
    over: float
    other: int
    took: float
    allowed: float


@click.command("limits")
@duration(180.0, "Seconds of each of two runs.")
@click.option("--away", default=10.0, help="Seconds without Redis in one run.")
def measure_limits(*, duration: float, away: float) -> None:
    """Check that four workers together keep limits, with Redis and without."""
    lines: list[Line] = []
    for what, gone in (("there", 0.0), (f"killed for {away:g} s", away)):
        with running_fleet() as (gateway, state):
            result = run_on(gateway, state, duration=duration, away=gone)
        lines.append(
            {
                "Redis": what,
                "worst window, over": result.over,
                "allowed over": result.allowed,
                "least share of what a tenant may get": result.share,
                "answers neither 200 nor 429": result.other,
            }
        )
    show("Limits", lines)


@click.command("regions")
@click.option("--phase", default=60.0, help="Seconds of each phase.")
@click.option("--lease", default=30.0, help="Seconds that a region's share lasts.")
@click.option("--tenants", default=5)
def measure_regions(*, phase: float, lease: float, tenants: int) -> None:
    """Check that gateways in two regions together keep limits, even when one region is lost.

    Each region is a gateway with a Redis; only the ledger is shared. Tenants send requests to both
    regions, then to one, then to the other. Then one region is killed.
    """
    result = run_regions(phase=phase, lease=lease, tenants=tenants)
    show(
        "Limits of two regions",
        result.phases,
        f"Worst window over the limit, over both regions: {result.over:+.2f} requests.",
        f"Answers neither 200 nor 429: {result.other}.",
        f"A lost region's share was used after {result.took:.1f} s; {result.allowed:g} s are"
        " allowed.",
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
            keys=_keys(TENANTS),
            rules=(RULE,),
            workers=WORKERS,
            state=state,
            state_timeout=state_timeout,
            **_SETTINGS,
        ) as gateway,
    ):
        yield gateway, state


def run_on(gateway: Gateway, state: Valkey, *, duration: float, away: float) -> LimitsResult:
    """Run for `duration` seconds, `away` of them without Redis; return how limits were kept."""
    # Computed before anything is sent: how long workers may believe that Redis is away.
    unaware = away + _BREAKER + _TIMEOUT if away else 0.0
    by_share = local_share(RULE, share=_SHARE, workers=WORKERS, away=unaware) if away else 0.0
    before = _admissions(gateway)
    answers = asyncio.run(_offer(gateway, state, duration=duration, away=away))
    good = [_admitted(of_tenant) for of_tenant in answers]
    wait_until(
        lambda: (_admissions(gateway) - before).total() >= sum(map(len, good)),
        what="the workers report what they admitted",
    )
    by_workers = (_admissions(gateway) - before)["local_share"]
    ahead = bound_ahead(RULE, workers=WORKERS, by_share=by_workers)
    return LimitsResult(
        over=max(most_over_the_limit(of_tenant, RULE) for of_tenant in good),
        allowed=max(by_share, ahead),
        ahead=ahead,
        share=min(
            len(own) / min(len(all_), bound(RULE, _took(all_)))
            for own, all_ in zip(good, answers, strict=True)
        ),
        other=_count_other(answers),
    )


async def _offer(
    gateway: Gateway, state: Valkey, *, duration: float, away: float
) -> list[list[Answer]]:
    async with asyncio.TaskGroup() as group:
        sending = [
            group.create_task(_send(gateway, number, _OFFERED, duration))
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


def _admissions(gateway: Gateway) -> Counter[str]:
    """Return how many requests the workers have admitted so far, by what allowed each admission."""
    registry = CollectorRegistry()
    folder = str(gateway.settings.metrics_dir)
    MultiProcessCollector(registry, path=folder)  # type: ignore[no-untyped-call]
    name, sources = "sluicegate_limit_admissions_total", ("lease", "redis", "local_share")
    return Counter(
        {each: int(registry.get_sample_value(name, {"source": each}) or 0) for each in sources}
    )


def run_regions(
    *,
    phase: float,
    lease: float,
    tenants: int,
    workers: int = 2,
    demands: Sequence[Sequence[float]] = _DEMANDS,
) -> RegionsResult:
    """Return how well limits were kept in phases of `phase` seconds, and after a region was killed.

    After the kill, the load goes on until the other region admits the whole limit, or until the
    time allowed for this has passed.
    """
    allowed = lease + _LEASE_ENDS + _ROUNDS
    answers: list[list[Answer]] = [[] for _ in range(tenants)]

    async def send(gateway: Gateway, number: int, rate: float, seconds: float) -> None:
        answers[number] += await _send(gateway, number, rate, seconds)

    async def demand(shares: Sequence[float], seconds: float) -> None:
        async with asyncio.TaskGroup() as group:
            for gateway, share in zip(gateways, shares, strict=True):
                for number in range(tenants if share else 0):
                    group.create_task(send(gateway, number, _OFFERED * share, seconds))

    phases: list[Line] = []
    with _gateways_in_regions(lease=lease, tenants=tenants, workers=workers) as gateways:
        for shares in demands:
            begin = time.perf_counter()
            asyncio.run(demand(shares, phase))
            pairs = zip(_REGIONS, shares, strict=True)
            phases.append(
                {
                    "demand": ", ".join(f"{name} {share:.0%}" for name, share in pairs),
                    "admitted": _count(answers, begin, begin + phase),
                    "of the limit": _share(answers, begin, begin + phase),
                }
            )
        gateways[-1].kill()
        killed_at = time.perf_counter()
        last = time.perf_counter() + allowed + 5.0
        while time.perf_counter() < last and isinf(_whole_after(answers, killed_at)):
            asyncio.run(demand((1.0, 0.0), _PART))
    return RegionsResult(
        phases=phases,
        over=max(most_over_the_limit(_admitted(of_tenant), RULE) for of_tenant in answers),
        other=_count_other(answers),
        took=_whole_after(answers, killed_at),
        allowed=allowed,
    )


@contextlib.contextmanager
def _gateways_in_regions(*, lease: float, tenants: int, workers: int) -> Iterator[list[Gateway]]:
    """Run a gateway in each region, with one ledger; yield once all have their shares of limits."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = f"sqlite:///{folder / 'ledger.db'}"
        add_tenants(url, _keys(tenants), rules=(RULE,))
        ledger = stack.enter_context(Ledger.create(url))
        gateways = []
        for name in _REGIONS:
            stub = stack.enter_context(stub_process(backend_id=name, region=name))
            limits = {"limits": {"share_lease": lease, "local_share": 0.0}}
            gateway = running_gateway(
                folder / name,
                one_backend(stub.url, backend_id=name, region=name) | limits,
                keys={},
                workers=workers,
                region=name,
                ledger_url=url,
                **_SETTINGS,
            )
            gateways.append(stack.enter_context(gateway))
        even = [round(1 / len(_REGIONS), 4)] * len(_REGIONS)
        wait_until(
            lambda: [row.share for row in ledger.shares.shares() if not row.bucket] == even,
            within=30.0,
            what="shares are even",
        )
        yield gateways


def _keys(tenants: int) -> dict[str, str]:
    return {f"tenant-{number}": _key(number) for number in range(tenants)}


def _key(number: int) -> str:
    return f"sk-limits-tenant-{number:02}"


async def _send(gateway: Gateway, number: int, rate: float, seconds: float) -> list[Answer]:
    """Send requests of one tenant."""
    return await open_loop(
        gateway.target(_key(number)),
        itertools.repeat(_BODY),
        rate=rate,
        duration=seconds,
        seed=number,
        connections=_CONNECTIONS,
        patience=60.0,
    )


def _admitted(answers: Sequence[Answer]) -> list[AdmittedRequest]:
    return [AdmittedRequest(one.sent, one.came) for one in answers if one.status == OK]


def _took(answers: Sequence[Answer]) -> float:
    return max(one.came for one in answers) - min(one.sent for one in answers)


def _count_other(answers: Sequence[Sequence[Answer]]) -> int:
    return sum(one.status not in (OK, _LIMITED) for of_tenant in answers for one in of_tenant)


def _count(answers: Sequence[Sequence[Answer]], begin: float, end: float) -> int:
    """Return the number of admitted requests among the requests sent between two times."""
    return sum(one.status == OK and begin <= one.sent < end for each in answers for one in each)


def _share(answers: Sequence[Sequence[Answer]], begin: float, end: float) -> float:
    """Return the requests admitted between two times, divided by the refill in that time."""
    return _count(answers, begin, end) / (len(answers) * (end - begin) * _REFILL)


def _whole_after(answers: Sequence[Sequence[Answer]], killed_at: float) -> float:
    """Return the seconds from `killed_at` until 97 % of the limit was used for 4 s."""
    last = max(one.sent for each in answers for one in each if one.status == OK)
    begin = killed_at
    while begin + 4.0 <= last:
        if _share(answers, begin, begin + 4.0) >= 0.97:
            return begin - killed_at
        begin += 0.25
    return inf
