"""Checks that gateways in two regions together keep limits, also when one region is lost.

Each region is a gateway with a Redis; only the ledger is shared. Tenants request three times their
limit in both regions, then in one, then in the other; then one region is killed. The admissions of
every window, over both regions, are compared with the limit.
"""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from math import isinf
from pathlib import Path

import click
import msgspec

from gateway.ledger.ledger import Ledger
from loadtests.gateway import Gateway, add_tenants, one_backend, running_gateway
from loadtests.limits import BODY, OFFERED, OK, RULE
from loadtests.open_loop import Answer, open_loop
from loadtests.report import heading, print_table
from loadtests.windows import AdmittedRequest, most_over_the_limit
from testing.stub_process import stub_process
from testing.waiting import wait_until

NAMES = ("eu", "us")
LEASE_ENDS = 2.0
"""Seconds after the end of a region's lease that the others leave its share alone."""
_ROUNDS = 2.0
_PART = 2.0
"""Seconds of load after which is looked whether a lost region's share is used."""
_CONNECTIONS = 12
DEMANDS = ((0.5, 0.5), (1.0, 0.0), (0.0, 1.0))
"""The share of all requests that goes to each region, phase by phase."""


class PhaseResult(msgspec.Struct, frozen=True, kw_only=True):
    """A phase of constant demand: the admitted rate, and its share of the limit's."""

    name: str
    admitted: int
    share: float
    settled: float
    """The share in the last third, when shares have followed the demand."""


class RegionsResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run. `over` is the worst window of all tenants over both regions."""

    phases: list[PhaseResult]
    over: float
    other: int
    """Answers that were neither 200 nor 429, of regions that lived."""
    took: float
    """Seconds from the loss of a region until the other admitted the whole limit."""
    allowed: float
    """The largest right value of `took`."""


class Regions(msgspec.Struct, frozen=True):
    """The gateways of both regions, and the tenants' keys."""

    gateways: Sequence[Gateway]
    keys: Sequence[str]


@click.command()
@click.option("--phase", default=60.0, help="Seconds of each demand.")
@click.option("--lease", default=30.0, help="Seconds a lost region keeps it.")
@click.option("--tenants", default=5)
def measure(*, phase: float, lease: float, tenants: int) -> None:
    """Check that gateways in two regions keep limits together, also when one is lost."""
    result = run(phase=phase, lease=lease, tenants=tenants)
    heading("Limits of two regions")
    print_table(
        ("demand", "admitted", "of the limit", "in the last third"),
        [(p.name, p.admitted, f"{p.share:.3f}", f"{p.settled:.3f}") for p in result.phases],
    )
    print(f"\nWorst window over the limit, over both regions: {result.over:+.2f} requests")
    print(f"answers neither 200 nor 429: {result.other}")
    print(f"a lost region's share was used after {result.took:.1f} s, allowed {result.allowed:g} s")


def run(
    *,
    phase: float,
    lease: float,
    tenants: int,
    workers: int = 2,
    demands: Sequence[Sequence[float]] = DEMANDS,
) -> RegionsResult:
    """Return how limits were kept in phases of `phase` seconds, and after a region was killed.

    After the kill the load goes on until the other region has the whole limit, or was late with it.
    """
    allowed = lease + LEASE_ENDS + _ROUNDS
    with regions(lease=lease, tenants=tenants, workers=workers) as running:
        answers, phases, killed_at = asyncio.run(
            _offer(running, demands, phase=phase, after=allowed + 5.0)
        )
    admitted = _admitted(answers)
    over = max(most_over_the_limit(of_tenant, RULE) for of_tenant in admitted)
    every = [one for of_tenant in answers for one in of_tenant]
    return RegionsResult(
        phases=[_phase(name, admitted, begin, begin + phase) for name, begin in phases],
        over=over,
        other=sum(one.status not in (OK, 429) for one in every),
        took=_whole_after(admitted, killed_at),
        allowed=allowed,
    )


@contextlib.contextmanager
def regions(*, lease: float, tenants: int, workers: int) -> Iterator[Regions]:
    """Run a gateway in each region over one ledger, until all have their shares."""
    keys = {f"tenant-{number}": f"sk-regions-tenant-{number:02}" for number in range(tenants)}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = f"sqlite:///{folder / 'ledger.db'}"
        add_tenants(url, keys, rules=(RULE,))
        ledger = stack.enter_context(Ledger.create(url))
        gateways = []
        for name in NAMES:
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
            )
            gateways.append(stack.enter_context(gateway))
        even = [round(1 / len(NAMES), 4)] * len(NAMES)
        wait_until(
            lambda: [row.share for row in ledger.shares.shares() if not row.bucket] == even,
            within=30.0,
            what="shares are even",
        )
        yield Regions(gateways, list(keys.values()))


async def _offer(
    running: Regions, demands: Sequence[Sequence[float]], *, phase: float, after: float
) -> tuple[list[list[Answer]], list[tuple[str, float]], float]:
    """Return every tenant's answers, when phases began, and when a region was killed.

    Times are seconds of the run.
    """
    began = time.perf_counter()
    answers: list[list[Answer]] = [[] for _ in running.keys]
    phases: list[tuple[str, float]] = []
    for asks in demands:
        name = ", ".join(f"{n} {ask:.0%}" for n, ask in zip(NAMES, asks, strict=True))
        phases.append((name, time.perf_counter() - began))
        await _phase_of(running, asks, answers, began=began, duration=phase)
    running.gateways[-1].kill()
    killed_at = time.perf_counter() - began
    # No longer than it takes to show that the other region has the whole limit.
    while time.perf_counter() - began - killed_at < after and isinf(
        _whole_after(_admitted(answers), killed_at)
    ):
        await _phase_of(running, (1.0, 0.0), answers, began=began, duration=_PART)
    return answers, phases, killed_at


def _admitted(answers: Sequence[Sequence[Answer]]) -> list[list[AdmittedRequest]]:
    return [
        [AdmittedRequest(one.sent, one.came) for one in of_tenant if one.status == OK]
        for of_tenant in answers
    ]


async def _phase_of(
    running: Regions,
    asks: Sequence[float],
    answers: list[list[Answer]],
    *,
    began: float,
    duration: float,
) -> None:
    rate = OFFERED * RULE.capacity / RULE.window

    async def send(number: int, gateway: Gateway, ask: float) -> None:
        answers[number] += await open_loop(
            gateway.target(running.keys[number]),
            iter(lambda: BODY, b""),
            rate=rate * ask,
            duration=duration,
            seed=number,
            connections=_CONNECTIONS,
            since=began,
        )

    async with asyncio.TaskGroup() as group:
        for number in range(len(running.keys)):
            for gateway, ask in zip(running.gateways, asks, strict=True):
                if ask:
                    group.create_task(send(number, gateway, ask))


def _phase(
    name: str, admitted: list[list[AdmittedRequest]], begin: float, end: float
) -> PhaseResult:
    third = end - (end - begin) / 3
    return PhaseResult(
        name=name,
        admitted=sum(begin <= one.sent < end for each in admitted for one in each),
        share=_share(admitted, begin, end),
        settled=_share(admitted, third, end),
    )


def _share(admitted: list[list[AdmittedRequest]], begin: float, end: float) -> float:
    """Return the requests admitted between two times, relative to the refill in between."""
    count = sum(begin <= one.sent < end for each in admitted for one in each)
    return count / (len(admitted) * (end - begin) * RULE.capacity / RULE.window)


def _whole_after(admitted: list[list[AdmittedRequest]], killed_at: float) -> float:
    """Return the seconds after `killed_at` until 97 % of the limit were used for 4 s."""
    last = max(one.sent for each in admitted for one in each)
    begin = killed_at
    while begin + 4.0 <= last:
        if _share(admitted, begin, begin + 4.0) >= 0.97:
            return begin - killed_at
        begin += 0.25
    return float("inf")
