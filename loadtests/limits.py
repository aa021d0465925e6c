"""Checks that four workers together keep tenants' limits, with Redis and without.

Every tenant requests, over many connections, three times the refill rate of its bucket. The
admissions of every window are then compared with the limit.
"""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

from gateway.types import Rule
from loadtests.gateway import Gateway, one_backend, running_gateway
from loadtests.open_loop import Answer, open_loop
from loadtests.options import duration
from loadtests.report import heading, print_table
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
"""100 at once, 1,000 a minute."""
WORKERS, TENANTS = 4, 10
SHARE = 0.1
OFFERED = 3.0
"""The rate of each tenant's requests, relative to the refill of its bucket."""
# More than enough that every worker has some of each tenant's.
_CONNECTIONS = 24
# Seconds until a worker asks Redis again after it gave up, and that it waits for an answer.
_BREAKER, _TIMEOUT = 1.0, 1.0
OK, _REFUSED = 200, 429
BODY = b'{"model":"stub","input":"a gorgeous, witty, seductive movie"}'


class TenantResult(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's result: the excess of its worst window, and its share of the bound."""

    tenant: str
    admitted: int
    refused: int
    other: int
    over: float
    share: float


class LimitsResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run; `by_share` is the highest possible admission without Redis.

    `ahead` is what a window may have beyond the limit since Redis was late; 0 if it never was.
    """

    tenants: list[TenantResult]
    away: float
    by_share: float
    ahead: float

    @property
    def allowed(self) -> float:
        """By how many requests a window may be over its limit."""
        return max(self.by_share, self.ahead)

    @property
    def over(self) -> float:
        """By how many requests the worst window of all tenants is over its limit."""
        return max(one.over for one in self.tenants)

    @property
    def share(self) -> float:
        """The smallest share of its limit that a tenant got."""
        return min(one.share for one in self.tenants)


@click.command()
@duration(180.0, "Seconds of each of two runs.")
@click.option("--away", default=10.0, help="Seconds that Redis is dead in one.")
def measure(*, duration: float, away: float) -> None:
    """Run once with Redis there, once with Redis killed in the middle; print both."""
    show("Redis is there", run(duration=duration, away=0.0))
    show(f"Redis is killed for {away:g} s", run(duration=duration, away=away))


def run(*, duration: float, away: float, state_timeout: float = _TIMEOUT) -> LimitsResult:
    """Return how the limits were kept for `duration` seconds, Redis gone for `away` of them.

    On a machine that may stall, workers wait for Redis for a longer `state_timeout`.
    """
    # Computed before anything is sent: how long the workers may think that Redis is away.
    unaware = away + _BREAKER + _TIMEOUT if away else 0.0
    by_share = local_share(RULE, share=SHARE, workers=WORKERS, away=unaware) if away else 0.0
    with _gateway(state_timeout) as (gateway, state):
        answers = asyncio.run(_offer(gateway, state, duration=duration, away=away))
        admitted = sum(one.status == OK for tenant in answers for one in tenant)
        by_workers = _admitted_without_redis(gateway, admitted)
    tenants = [_kept(f"tenant-{number}", one) for number, one in enumerate(answers)]
    ahead = bound_ahead(RULE, workers=WORKERS, by_share=by_workers)
    return LimitsResult(tenants=tenants, away=away, by_share=by_share, ahead=ahead)


def show(title: str, result: LimitsResult) -> None:
    """Print the result of a run."""
    heading(title)
    print_table(
        ("tenant", "admitted", "refused", "other", "worst window, over the limit", "of the bound"),
        [
            (each.tenant, each.admitted, each.refused, each.other, *_shown(each))
            for each in result.tenants
        ],
    )
    print(f"\nWorst window {result.over:+.2f}; allowed over the limit: {result.allowed:.1f}")


def _shown(result: TenantResult) -> tuple[str, str]:
    return f"{result.over:+.2f}", f"{result.share:.4f}"


def _admitted_without_redis(gateway: Gateway, admitted: int) -> float:
    """Return how many of `admitted` requests workers admitted before Redis had answered."""
    found: dict[str, float] = {}
    name = "sluicegate_limit_admissions_total"

    def have_all() -> bool:
        registry = CollectorRegistry()
        folder = str(gateway.settings.metrics_dir)
        MultiProcessCollector(registry, path=folder)  # type: ignore[no-untyped-call]
        for source in ("lease", "redis", "local_share"):
            found[source] = registry.get_sample_value(name, {"source": source}) or 0.0
        return sum(found.values()) >= admitted

    wait_until(have_all, what="the workers report what they admitted")
    return found["local_share"]


@contextlib.contextmanager
def _gateway(state_timeout: float) -> Iterator[tuple[Gateway, Valkey]]:
    """Run workers with a Redis that can be taken away."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stub = stack.enter_context(stub_process())
        state = stack.enter_context(Valkey("--appendonly", "yes"))
        gateway = running_gateway(
            folder / "gateway",
            one_backend(stub.url) | {"limits": {"local_share": SHARE}},
            keys={f"tenant-{number}": _key(number) for number in range(TENANTS)},
            rules=(RULE,),
            workers=WORKERS,
            state=state,
            state_timeout=state_timeout,
            batches=False,
            shutdown_delay=0.0,
        )
        yield stack.enter_context(gateway), state


async def _offer(
    gateway: Gateway, state: Valkey, *, duration: float, away: float
) -> list[list[Answer]]:
    rate = OFFERED * RULE.capacity / RULE.window
    bodies = iter(lambda: BODY, b"")
    sending = [
        open_loop(
            gateway.target(_key(number)),
            bodies,
            rate=rate,
            duration=duration,
            seed=number,
            connections=_CONNECTIONS,
        )
        for number in range(TENANTS)
    ]
    *answers, _ = await asyncio.gather(*sending, _take_away(state, duration=duration, away=away))
    return [one for one in answers if one is not None]


async def _take_away(state: Valkey, *, duration: float, away: float) -> None:
    if not away:
        return
    await asyncio.sleep((duration - away) / 2)
    state.kill()
    killed = time.monotonic()
    await asyncio.sleep(away)
    await asyncio.to_thread(state.start)
    print(f"Redis was away for {time.monotonic() - killed:.2f} s")


def _kept(tenant: str, answers: list[Answer]) -> TenantResult:
    admitted = [AdmittedRequest(one.sent, one.came) for one in answers if one.status == OK]
    refused = sum(one.status == _REFUSED for one in answers)
    took = max(one.came for one in answers) - min(one.sent for one in answers)
    return TenantResult(
        tenant=tenant,
        admitted=len(admitted),
        refused=refused,
        other=len(answers) - len(admitted) - refused,
        over=most_over_the_limit(admitted, RULE),
        share=len(admitted) / bound(RULE, took),
    )


def _key(number: int) -> str:
    return f"sk-limits-tenant-{number:02}"
