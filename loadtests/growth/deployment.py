"""Runs a gateway with its backends and Valkeys, and measures what its processes use."""

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any  # values of a document's sections

import msgspec

from loadtests.backend import backend
from loadtests.gateway import WIDE_LIMITS, Gateway, add_tenants
from loadtests.generator import Outcome, run_closed
from loadtests.growth.load import send
from loadtests.growth.points import Point
from loadtests.machine import processor_seconds, resident_mib
from sluicegate.gateway.auth.keys import hash_key
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.ledger.types import KeySpec
from sluicegate.gateway.types import Rule
from testing.stub_process import stub_process
from testing.valkey import Valkey

TENANT, KEY = "bench", "sk-growth-bench-0123456789"
RULE = msgspec.convert(WIDE_LIMITS["tenant"][0], Rule)
"""Limits are in force but refuse nothing, so that requests cost what they usually cost."""
_SECRET = "0123456789abcdef" * 2  # gateways that share a cache need the same
_WARM = 0.5
_PHASES = 3
_AT_ONCE = 10_000


class Use(msgspec.Struct, frozen=True):
    """What each role has used: processor seconds since its start, and MiB of memory now."""

    at: float
    processor: dict[str, float]
    memory: dict[str, float]

    def since(self, before: "Use") -> dict[str, float]:
        """Return the processor seconds that each role used since `before`."""
        return {role: used - before.processor[role] for role, used in self.processor.items()}


class Deployment:
    """A running gateway and what its processes use."""

    def __init__(self, gateway: Gateway, pids: dict[str, list[int]]) -> None:
        self.gateway = gateway
        self._pids = pids

    def measure(
        self, curve: str, size: int, requests: Iterator[bytes], *, connections: int, seconds: float
    ) -> Point:
        """Send `requests` for `seconds`; return what the system uses in addition to its idle use.

        The requests are sent in several phases. The result is the phase with the least processor
        time, because other work on the machine can only increase this time.

        Raises:
            RuntimeError: an answer was not 200.
        """
        idle = self.idle()
        phases = (_WARM, *[seconds / _PHASES] * _PHASES)
        port = self.gateway.port
        _, *runs = send(port, requests, self.use, connections=connections, phases=phases)
        points = []
        for before, outcome, after in runs:
            _check(outcome)
            took, count = after.at - before.at, outcome.requests
            point = Point(
                curve=curve,
                size=size,
                rate=outcome.rate,
                processor={
                    role: max(0.0, used - idle[role] * took) / count * 1e6
                    for role, used in after.since(before).items()
                },
                idle={role: one * 1e6 for role, one in idle.items()},
                p99=outcome.percentile(0.99) * 1e3,
                memory=after.memory,  # while all connections are open
            )
            points.append(point)
        return min(points, key=lambda point: sum(point.processor.values()))

    def fill(self, bodies: Iterable[bytes]) -> None:
        """Send each request once, to fill the caches.

        Raises:
            RuntimeError: an answer was not 200.
        """
        _check(run_closed(self.gateway.target(KEY), iter(bodies), connections=8))

    def idle(self, seconds: float = 1.0) -> dict[str, float]:
        """Return the processor seconds that each role uses per second without requests."""
        before = self.use()
        time.sleep(seconds)
        return {role: used / seconds for role, used in self.use().since(before).items()}

    def use(self) -> Use:
        """Return the processor time used so far, and the memory in use."""
        pids = self._pids.items()
        return Use(
            time.perf_counter(),
            {role: sum(map(processor_seconds, of)) for role, of in pids},
            {role: sum(map(resident_mib, of)) for role, of in pids},
        )

    def add_keys(self, keys: Sequence[str], *, each_its_tenant: bool = False) -> None:
        """Create API keys in the ledger as an operator does.

        All keys belong to one tenant or, with `each_its_tenant`, each key to a tenant of its own.
        """
        # With a limit on the key, a request waits for Redis as it does for the tenant's limit.
        rules = (RULE,) if each_its_tenant else ()
        with Ledger.create(self.gateway.settings.ledger) as ledger:
            for first in range(0, len(keys), _AT_ONCE):
                specs = [
                    KeySpec(
                        tenant=f"tenant-of-{key}" if each_its_tenant else TENANT,
                        key_hash=hash_key(key),
                        rules=rules,
                    )
                    for key in keys[first : first + _AT_ONCE]
                ]
                ledger.accounts.create_keys(specs, new_tenants=True)


def _check(outcome: Outcome) -> None:
    if outcome.failed:
        raise RuntimeError(f"not everything was answered: {outcome.statuses}")


@contextlib.contextmanager
def deployment(
    folder: Path,
    *,
    workers: int = 1,
    backends: int = 1,
    models: Path | None = None,
    document: dict[str, Any] | None = None,
    cache: Valkey | None = None,
) -> Iterator[Deployment]:
    """Run a gateway with stub backends or, with `models`, with paced backends that serve them.

    `document` adds sections to the configuration document. Without `cache`, the gateway gets a
    Redis of its own for cached results.
    """
    with contextlib.ExitStack() as stack:
        state = stack.enter_context(Valkey("--appendonly", "yes"))
        cache = cache or stack.enter_context(Valkey())
        running = [stack.enter_context(_backend(models)) for _ in range(backends)]
        pool = [{"id": f"bench-{n}", "url": url} for n, (url, _) in enumerate(running)]
        gateway = Gateway(
            folder,
            {
                "regions": [{"name": "eu", "pools": [{"backends": pool}]}],
                "deadline": {"default": 60.0},
                "routing": {"attempt_timeout": 60.0},
                "limits": WIDE_LIMITS,
            }
            | (document or {}),
            workers=workers,
            state_url=state.url,
            cache_url=cache.url,
            secret=_SECRET,
            memory_limit_bytes=0,
        )
        add_tenants(gateway.settings.ledger, {TENANT: KEY}, rules=(RULE,))
        stack.enter_context(gateway)
        pids = {"gateway": [], "events": [], "backend": [pid for _, pid in running]}
        for name, pid in gateway.processes().items():
            role = name.partition(" ")[0]
            if role != "supervisor":
                pids["gateway" if role == "gateway" else "events"].append(pid)
        yield Deployment(gateway, pids | {"valkeys": [state.pid, cache.pid]})


@contextlib.contextmanager
def _backend(models: Path | None) -> Iterator[tuple[str, int]]:
    """Run a stub backend, or a paced one; yield its address and its process."""
    if models is None:
        with stub_process() as stub:
            yield stub.url, stub.process.pid
    else:
        paced = {"provider": "paced", "paced_base": "1e-3", "paced_token": "1e-6"}
        with backend(models, threads="2", **paced) as running:
            yield running.url, running.pid
