"""Measures hits and misses while the Redis of the cache, or of the state, fails.

A worker process receives memory hits and misses at fixed rates while its Redis is healthy, while it
fails, and after it recovered. Requests, items and the rows of a key are limited: a miss is charged
before it starts. Even the local share of a worker is above the load.
"""

import asyncio
import contextlib
import itertools
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any  # figures of many kinds

import httpx
import msgspec

from gateway.redis.client import connect
from gateway.runtime.control import Control
from gateway.settings import Settings, environment, process_environment
from gateway.supervisor.bootstrap import bootstrap
from loadtests.generator import Target
from loadtests.machine import pin, this_machine
from loadtests.open_loop import Answer, open_loop
from testing.loopback import is_answered
from testing.ports import free_port
from testing.redis_faults import (
    FAULTS,
    OPENING,
    STATE_FAULTS,
    STATE_OPENING,
    failing_redis,
)
from testing.stub_process import stub_process
from testing.valkey import Valkey
from testing.waiting import wait_until

_ROOT = Path(__file__).parents[1]
_KEY = "sk-chaos-key-0123456789abcdef"
_SERVER, _OTHERS = 0, 1
_SERVICE_TIME = 0.005
_POPULAR = 100
_ALLOWED = 0.020
_HELD_UP = 0.050
_DURABLE = ("--appendonly", "yes")
"""The state Redis is not to lose the epochs of the cache when it is killed."""
_LIMIT = {"name": "rows", "unit": "rows", "capacity": 10_000_000, "window": 60.0}


class PhaseResult(msgspec.Struct, frozen=True, kw_only=True):
    """The answers in a phase of a run; latencies in milliseconds."""

    hits: int
    hit_p99: float
    held_up: int
    """Hits that took more than 50 ms."""
    misses: int
    miss_p99: float
    failed: int


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """Names the Redis that fails, and its fault."""

    redis: str
    fault: str

    @property
    def opens(self) -> bool:
        """Whether the breaker before this Redis must open."""
        return self.fault in (OPENING if self.redis == "cache" else STATE_OPENING)


class FaultResult(msgspec.Struct, frozen=True, kw_only=True):
    """The phases before, during and after a fault, and the breaker's openings."""

    case: Case
    before: PhaseResult
    during: PhaseResult
    after: PhaseResult
    waited: float
    """Seconds from the beginning until the last miss that waited for Redis."""
    opened: int
    is_closed: bool


def measure(*, redis: str, quiet: float, faulty: float, hits: float, misses: float) -> None:
    """Run every fault and print the table; end with an error where a claim does not hold."""
    cases = [Case(redis="cache", fault=fault) for fault in FAULTS]
    cases += [Case(redis="state", fault=fault) for fault in STATE_FAULTS]
    lines = [
        asyncio.run(_run(case, quiet=quiet, faulty=faulty, hits=hits, misses=misses))
        for case in cases
        if redis in ("both", case.redis)
    ]
    machine = this_machine()
    print(f"\n## Faults of Redis\n\n{machine.headline}\n")
    print(
        "| Redis | fault | hit p99 ms | hits over 50 ms | miss p99 ms | failed"
        " | last miss that waited | breaker |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for line in lines:
        phases = (line.before, line.during, line.after)
        print(
            f"| {line.case.redis} | {line.case.fault}"
            f" | {' / '.join(f'{phase.hit_p99:.1f}' for phase in phases)}"
            f" | {' / '.join(str(phase.held_up) for phase in phases)}"
            f" | {' / '.join(f'{phase.miss_p99:.1f}' for phase in phases)}"
            f" | {sum(phase.failed for phase in phases)}"
            f" | {f'{line.waited:.2f} s' if line.opened else '-'}"
            f" | opened {line.opened}x, {'closed' if line.is_closed else 'OPEN'} |"
        )
    broken = [f"{line.case.redis}: {line.case.fault}" for line in lines if not _holds(line)]
    if broken:
        sys.exit(f"does not hold: {', '.join(broken)}")


def _holds(line: FaultResult) -> bool:
    phases = (line.before, line.during, line.after)
    is_cheap = line.during.miss_p99 <= line.before.miss_p99 + _ALLOWED * 1000
    is_noticed = bool(line.opened) or not line.case.opens
    is_well = not any(phase.failed for phase in phases)
    return is_well and is_cheap and is_noticed and line.is_closed


async def _run(
    case: Case, *, quiet: float, faulty: float, hits: float, misses: float
) -> FaultResult:
    async with AsyncExitStack() as stack:
        kind = _DURABLE if case.redis == "state" else ()
        redis = await stack.enter_async_context(failing_redis(case.fault, *kind))
        other = stack.enter_context(Valkey())
        cache, state = (redis.url, other.url) if case.redis == "cache" else (other.url, redis.url)
        stub = stack.enter_context(stub_process(service_time=_SERVICE_TIME))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        port = stack.enter_context(_worker(folder, cache, state, stub.url))
        headers = (("authorization", f"Bearer {_KEY}"),)
        target = Target(host="127.0.0.1", port=port, path="/v1/classify", headers=headers)
        fresh = map(_body, (f"never asked {number}" for number in itertools.count()))
        await open_loop(target, iter(_popular()), rate=hits, duration=_POPULAR / hits * 0.9)

        async def phase(seconds: float) -> tuple[list[Answer], list[Answer]]:
            hit, miss = await asyncio.gather(
                open_loop(target, itertools.cycle(_popular()), rate=hits, duration=seconds),
                open_loop(target, fresh, rate=misses, duration=seconds, seed=2),
            )
            return hit, miss

        await phase(1.0)  # warm
        before = await phase(quiet)
        redis.begin()
        during = await phase(faulty)
        healed = asyncio.to_thread(redis.end)
        _, after = await asyncio.gather(healed, phase(quiet))
        opened, breaker = await _breaker(case, state)
        return FaultResult(
            case=case,
            before=_summary(*before),
            during=_summary(*during),
            after=_summary(*after),
            waited=_last_that_waited(during[1], _summary(*before)),
            opened=opened,
            is_closed=breaker == "closed",
        )


def _summary(hits: list[Answer], misses: list[Answer]) -> PhaseResult:
    return PhaseResult(
        hits=len(hits),
        hit_p99=_p99(hits),
        held_up=sum(answer.latency > _HELD_UP for answer in hits),
        misses=len(misses),
        miss_p99=_p99(misses),
        failed=sum(answer.status != httpx.codes.OK for answer in [*hits, *misses]),
    )


def _p99(answers: list[Answer]) -> float:
    latencies = sorted(answer.latency for answer in answers)
    return latencies[int(len(latencies) * 0.99)] * 1000


def _last_that_waited(misses: list[Answer], before: PhaseResult) -> float:
    """Return the due time of the last miss that took 10 ms more than usual."""
    return max((a.due for a in misses if a.latency * 1000 > before.miss_p99 + 10), default=0.0)


def _popular() -> list[bytes]:
    return [_body(f"popular {number}") for number in range(_POPULAR)]


def _body(text: str) -> bytes:
    return msgspec.json.encode({"model": "stub", "input": text})


async def _breaker(case: Case, state_url: str) -> tuple[int, str]:
    """Return the breaker's openings and state by the worker's last report."""
    async with _client(state_url) as control:
        (report,) = (await control.reports()).values()
    figures = msgspec.json.decode(report)
    part: dict[str, Any] = (
        figures["cache"]["remote"] if case.redis == "cache" else figures["limits"]
    )
    return part["breaker_opened"], part["breaker"]


@contextlib.asynccontextmanager
async def _client(url: str) -> AsyncIterator[Control]:
    redis = connect(url, timeout=5.0)
    try:
        yield Control(redis)
    finally:
        await redis.aclose()


@contextlib.contextmanager
def _worker(folder: Path, cache_url: str, state_url: str, backend_url: str) -> Iterator[int]:
    """Run one worker on a core of its own, until the context ends."""
    (folder / "config").mkdir()
    regions = [{"name": "eu", "pools": [{"backends": [{"id": "stub", "url": backend_url}]}]}]
    limits = {"key": [_LIMIT]}
    document = msgspec.json.encode({"regions": regions, "limits": limits})  # JSON is YAML
    (folder / "config" / "gateway.yaml").write_bytes(document)
    settings = Settings(
        data_dir=folder,
        config=folder / "config",
        cache_url=cache_url,
        state_url=state_url,
        port=free_port(),
        secret="0" * 64,
    )
    bootstrap(settings, _KEY)
    child = subprocess.Popen(
        [sys.executable, "-m", "gateway", "run-worker"],
        cwd=_ROOT,
        env=dict(process_environment()) | environment(settings),
    )
    try:
        wait_until(
            lambda: is_answered(f"http://127.0.0.1:{settings.port}/health/ready"),
            within=30,
            what="the worker",
        )
        pin([child.pid], _SERVER)
        yield settings.port
    finally:
        child.terminate()
        child.wait(timeout=30)
