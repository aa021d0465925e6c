"""Checks that gateways in two regions together keep limits, even when one region is lost.

Each region is a gateway with a Redis; only the ledger is shared. Tenants send three times as many
requests as their limit: in both regions, then in one, then in the other. Then one region is killed.
For every window, the requests that both regions admitted are compared with the limit.
"""

import asyncio
import contextlib
import itertools
import tempfile
import time
from collections.abc import Iterator, Sequence
from math import inf, isinf
from pathlib import Path
from typing import NamedTuple

import click
import msgspec

from gateway.ledger.ledger import Ledger
from loadtests.gateway import Gateway, add_tenants, one_backend, running_gateway
from loadtests.generator import OK
from loadtests.limits import BODY, LIMITED, OFFERED, REFILL, RULE, admitted
from loadtests.open_loop import Answer, open_loop
from loadtests.report import Line, show
from loadtests.windows import most_over_the_limit
from testing.stub_process import stub_process
from testing.waiting import wait_until

_NAMES = ("eu", "us")
_LEASE_ENDS = 2.0
"""Seconds after the end of a lost region's lease for which the other region does not use the lost
region's share."""
_ROUNDS = 2.0
_PART = 2.0
"""Seconds of load after which the run checks whether a lost region's share is in use."""
_CONNECTIONS = 12
_DEMANDS = ((0.5, 0.5), (1.0, 0.0), (0.0, 1.0))
"""The share of all requests that goes to each region, phase by phase."""


class RegionsResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run. `over` is the excess of the worst window, summed over both regions."""

    phases: list[Line]
    over: float
    other: int
    """Answers other than 200 and 429 from regions that were not killed."""
    took: float
    """Seconds from the loss of a region until the other region admits the whole limit."""
    allowed: float
    """The allowed maximum of `took`."""


class _Regions(NamedTuple):
    """The gateways of both regions, and the tenants' keys."""

    gateways: Sequence[Gateway]
    keys: Sequence[str]


@click.command()
@click.option("--phase", default=60.0, help="Seconds of each phase.")
@click.option("--lease", default=30.0, help="Seconds that a region's share lasts.")
@click.option("--tenants", default=5)
def measure(*, phase: float, lease: float, tenants: int) -> None:
    """Check that gateways in two regions together keep limits, even when one region is lost."""
    result = run(phase=phase, lease=lease, tenants=tenants)
    show(
        "Limits of two regions",
        result.phases,
        f"Worst window over the limit, over both regions: {result.over:+.2f} requests.",
        f"Answers neither 200 nor 429: {result.other}.",
        f"A lost region's share was used after {result.took:.1f} s; {result.allowed:g} s are"
        " allowed.",
    )


def run(
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
    with _running(lease=lease, tenants=tenants, workers=workers) as running:
        answers, phases, killed_at = asyncio.run(
            _offer(running, demands, phase=phase, after=allowed + 5.0)
        )
    return RegionsResult(
        phases=[
            {
                "demand": name,
                "admitted": _count(answers, begin, begin + phase),
                "of the limit": _share(answers, begin, begin + phase),
                "in the last third": _share(answers, begin + phase * 2 / 3, begin + phase),
            }
            for name, begin in phases
        ],
        over=max(most_over_the_limit(admitted(of_tenant), RULE) for of_tenant in answers),
        other=sum(one.status not in (OK, LIMITED) for of_tenant in answers for one in of_tenant),
        took=_whole_after(answers, killed_at),
        allowed=allowed,
    )


@contextlib.contextmanager
def _running(*, lease: float, tenants: int, workers: int) -> Iterator[_Regions]:
    """Run a gateway in each region, with one ledger; yield once all have their shares of limits."""
    keys = {f"tenant-{number}": f"sk-regions-tenant-{number:02}" for number in range(tenants)}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = f"sqlite:///{folder / 'ledger.db'}"
        add_tenants(url, keys, rules=(RULE,))
        ledger = stack.enter_context(Ledger.create(url))
        gateways = []
        for name in _NAMES:
            stub = stack.enter_context(stub_process(backend_id=name, region=name))
            limits = {"limits": {"share_lease": lease, "local_share": 0.0}}
            gateway = running_gateway(
                folder / name,
                one_backend(stub.url, backend_id=name, region=name) | limits,
                keys={},
                workers=workers,
                region=name,
                ledger_url=url,
                batches=False,
                shutdown_delay=0.0,
                max_loop_delay=0.0,  # so that only limits refuse requests, even on a busy machine
            )
            gateways.append(stack.enter_context(gateway))
        even = [round(1 / len(_NAMES), 4)] * len(_NAMES)
        wait_until(
            lambda: [row.share for row in ledger.shares.shares() if not row.bucket] == even,
            within=30.0,
            what="shares are even",
        )
        yield _Regions(gateways, list(keys.values()))


async def _offer(
    running: _Regions, demands: Sequence[Sequence[float]], *, phase: float, after: float
) -> tuple[list[list[Answer]], list[tuple[str, float]], float]:
    """Return every tenant's answers, the starts of the phases, and when a region was killed.

    Times are seconds since the start of the run.
    """
    began = time.perf_counter()
    answers: list[list[Answer]] = [[] for _ in running.keys]
    phases: list[tuple[str, float]] = []

    async def send(number: int, gateway: Gateway, share: float, seconds: float) -> None:
        answers[number] += await open_loop(
            gateway.target(running.keys[number]),
            itertools.repeat(BODY),
            rate=OFFERED * share,
            duration=seconds,
            seed=number,
            connections=_CONNECTIONS,
            since=began,
        )

    async def demand(shares: Sequence[float], seconds: float) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(len(running.keys)):
                for gateway, share in zip(running.gateways, shares, strict=True):
                    if share:
                        group.create_task(send(number, gateway, share, seconds))

    for shares in demands:
        name = ", ".join(f"{n} {each:.0%}" for n, each in zip(_NAMES, shares, strict=True))
        phases.append((name, time.perf_counter() - began))
        await demand(shares, phase)
    running.gateways[-1].kill()
    killed_at = time.perf_counter() - began
    # The load ends once it has shown that the other region has the whole limit.
    while time.perf_counter() - began - killed_at < after and isinf(
        _whole_after(answers, killed_at)
    ):
        await demand((1.0, 0.0), _PART)
    return answers, phases, killed_at


def _count(answers: Sequence[Sequence[Answer]], begin: float, end: float) -> int:
    """Return the number of admitted requests among the requests sent between two times."""
    return sum(one.status == OK and begin <= one.sent < end for each in answers for one in each)


def _share(answers: Sequence[Sequence[Answer]], begin: float, end: float) -> float:
    """Return the requests admitted between two times, divided by the refill in that time."""
    return _count(answers, begin, end) / (len(answers) * (end - begin) * REFILL)


def _whole_after(answers: Sequence[Sequence[Answer]], killed_at: float) -> float:
    """Return the seconds from `killed_at` until 97 % of the limit was used for 4 s."""
    last = max(one.sent for each in answers for one in each if one.status == OK)
    begin = killed_at
    while begin + 4.0 <= last:
        if _share(answers, begin, begin + 4.0) >= 0.97:
            return begin - killed_at
        begin += 0.25
    return inf
