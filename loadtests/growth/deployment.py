"""Runs a gateway with its backends and Valkeys, and measures the use of its processes."""

import contextlib
import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any  # of sections of a document

import msgspec

from gateway.auth.keys import hash_key
from gateway.ledger.ledger import Ledger
from gateway.ledger.types import KeySpec
from gateway.types import Rule
from loadtests.backend import RunningBackend, backend
from loadtests.gateway import Gateway
from loadtests.growth.load import PhaseResult, send
from loadtests.growth.points import Measured
from loadtests.machine import processor_seconds, resident_mib
from loadtests.pipeline import PacedDevice
from testing.stub_process import stub_process
from testing.valkey import Valkey

TENANT, KEY = "bench", "sk-growth-bench-0123456789"
RULE = Rule(name="minute", unit="requests", capacity=1_000_000_000, window=60.0)
"""Limits are in force, and refuse nothing."""
_SECRET = "0123456789abcdef" * 2
_IDLE = 1.0
_WARM = 0.5
_PHASES = 3
_AT_ONCE = 10_000

Clocks = dict[str, float]


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """The processor time that was used by `at` seconds, and the memory in use.

    By the roles, by the whole machine, and by this process itself.
    """

    at: float
    roles: Clocks
    machine: float
    own: float
    memory: Clocks


class Deployment:
    """A running gateway and what its processes use."""

    def __init__(self, gateway: Gateway, pids: dict[str, list[int]]) -> None:
        self.gateway = gateway
        self._pids = pids

    @property
    def port(self) -> int:
        """The port of callers."""
        return self.gateway.port

    def measure(self, requests: Iterator[bytes], *, connections: int, seconds: float) -> Measured:
        """Send `requests` for `seconds`, and return their use above the use of an idle system.

        Of several phases the one counts that took the least: other work on a machine adds only.

        Raises:
            RuntimeError: something was not answered with 200.
        """
        idle = self.idle()
        phases = (_WARM, *[seconds / _PHASES] * _PHASES)
        _, *runs = send(self.port, requests, self.use, connections=connections, phases=phases)
        for run in runs:
            if set(run.statuses) != {200}:
                raise RuntimeError(f"not everything was answered: {run.statuses}")
        found = (_measured(run, idle) for run in runs)
        return min(found, key=lambda one: sum(one.processor.values()))

    def send_once(self, requests: list[bytes], *, connections: int = 8) -> None:
        """Send each request once, some of them perhaps twice, to fill the caches.

        Raises:
            RuntimeError: something was not answered with 200.
        """
        left = iter(requests)
        while (first := next(left, None)) is not None:
            bodies = itertools.chain([first], left, itertools.repeat(first))
            (run,) = send(self.port, bodies, self.use, connections=connections, phases=(0.5,))
            if set(run.statuses) - {200}:
                raise RuntimeError(f"not everything was answered: {run.statuses}")

    def idle(self, seconds: float = _IDLE) -> Clocks:
        """Return the seconds of processor time that each role takes a second without requests."""
        before = self.use()
        time.sleep(seconds)
        after = self.use()
        return {
            role: (used - before.roles[role]) / (after.at - before.at)
            for role, used in after.roles.items()
        }

    def use(self) -> Use:
        """Return the processor time used by now."""
        return Use(
            at=time.perf_counter(),
            roles={role: sum(map(processor_seconds, pids)) for role, pids in self._pids.items()},
            machine=_machine_seconds(),
            own=time.process_time(),
            memory={role: sum(map(resident_mib, pids)) for role, pids in self._pids.items()},
        )

    def add_keys(self, first: int, last: int, *, each_its_tenant: bool = False) -> None:
        """Add keys to the ledger, as an operator does: of one tenant, or of a tenant each."""
        with Ledger.create(self.gateway.settings.ledger) as ledger:
            for start in range(first, last, _AT_ONCE):
                numbers = range(start, min(last, start + _AT_ONCE))
                specs = [
                    KeySpec(
                        tenant=f"tenant-{number:07}" if each_its_tenant else TENANT,
                        key_hash=hash_key(key_of(number)),
                        # A key's own limit has it wait for Redis, as a tenant's has.
                        rules=(RULE,) if each_its_tenant else (),
                    )
                    for number in numbers
                ]
                ledger.accounts.create_keys(specs, new_tenants=True)

    def add_key(self, key: str) -> None:
        """Add a key to the ledger, as an operator does."""
        with Ledger.create(self.gateway.settings.ledger) as ledger:
            ledger.accounts.create_key(TENANT, key_hash=hash_key(key))


@contextlib.contextmanager
def deployment(
    folder: Path,
    *,
    workers: int = 1,
    backends: int = 1,
    models: Path | None = None,
    document: dict[str, Any] | None = None,
    cache_redis: Valkey | None = None,
) -> Iterator[Deployment]:
    """Run a gateway with stub backends, or with paced ones that serve `models`.

    `document` has more sections of the gateway's; `cache_redis` is used instead of one of its own.
    """
    folder.mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        redis = [stack.enter_context(Valkey("--appendonly", "yes"))]
        if cache_redis is None:
            redis.append(stack.enter_context(Valkey()))
        running = [stack.enter_context(_backend(models)) for _ in range(backends)]
        pool = [
            {"id": f"bench-{number}", "url": f"http://127.0.0.1:{one.port}"}
            for number, one in enumerate(running)
        ]
        gateway = Gateway(
            folder / "gateway",
            {
                "regions": [{"name": "eu", "pools": [{"backends": pool}]}],
                "deadline": {"default": 60.0},
                "routing": {"attempt_timeout": 60.0},
                "limits": {"tenant": [msgspec.to_builtins(RULE)]},
            }
            | (document or {}),
            workers=workers,
            state_url=redis[0].url,
            cache_url=(cache_redis or redis[1]).url,
            secret=_SECRET,
            memory_limit_bytes=0,
        )
        with Ledger.create(gateway.settings.ledger) as ledger:
            ledger.accounts.create_tenant(TENANT, rules=(RULE,))
            ledger.accounts.create_key(TENANT, key_hash=hash_key(KEY))
        stack.enter_context(gateway)
        pids = {"gateway": [], "events": [], "backend": [one.pid for one in running]}
        for name, pid in gateway.processes().items():
            role = name.partition(" ")[0]
            if role != "supervisor":
                pids["gateway" if role == "gateway" else "events"].append(pid)
        redis += [cache_redis] if cache_redis is not None else []
        yield Deployment(gateway, pids | {"valkeys": [one.pid for one in redis]})


def request(body: bytes, *, key: str = KEY) -> bytes:
    """Return the bytes of a request."""
    return (
        b"POST /v1/classify HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        b"authorization: Bearer %b\r\ncontent-length: %d\r\n\r\n%b"
        % (key.encode(), len(body), body)
    )


def key_of(number: int) -> str:
    """Return the text of a key that `add_keys` added."""
    return f"sk-growth-key-{number:07}"


def _measured(run: PhaseResult[Use], idle: Clocks) -> Measured:
    count, took = run.statuses[200], run.after.at - run.before.at
    used = {role: after - run.before.roles[role] for role, after in run.after.roles.items()}
    busy = run.after.machine - run.before.machine
    own = sum(used.values()) + run.after.own - run.before.own
    return Measured(
        rate=count / run.took,
        processor={
            role: max(0.0, one - idle[role] * took) / count * 1e6 for role, one in used.items()
        },
        idle={role: one * 1e6 for role, one in idle.items()},
        p50=run.percentile(0.5) * 1e3,
        p99=run.percentile(0.99) * 1e3,
        memory=run.after.memory,  # with all connections open
        others=max(0.0, busy - own) / (took * (os.cpu_count() or 1)),
    )


@contextlib.contextmanager
def _backend(models: Path | None) -> Iterator[RunningBackend]:
    if models is None:
        with stub_process() as stub:
            yield RunningBackend(port=int(stub.url.rpartition(":")[2]), pid=stub.process.pid)
    else:
        settings = {
            name.removeprefix("SLUICEGATE_BACKEND_").lower(): value
            for name, value in PacedDevice().environment().items()
        }
        with backend(models, **settings) as running:
            yield running


def _machine_seconds() -> float:
    """Return the processor time that all processes have used."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    ticks = list(map(int, fields[:8]))  # idle and waiting for a disk are 3 and 4; 7 is stolen
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
