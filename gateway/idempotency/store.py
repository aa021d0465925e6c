"""Stores who runs the request of an idempotency key, and its answer, in the state Redis.

A key is claimed before its request runs. The claim is a lease that the owner renews: when the owner
dies, the next retry takes the claim over. What is then recorded twice is counted once, by its id
(`gateway.idempotency.keys.id_of`), so that a claim need not be exclusive for billing to be right.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Coroutine
from enum import StrEnum
from math import inf
from typing import Any, Final, Self
from urllib.parse import quote

import msgspec
from redis.exceptions import RedisError

from gateway.config.document import IdempotencyConfig
from gateway.errors import DependencyUnavailable
from gateway.idempotency.script import PREFIX, SCRIPT
from gateway.redis.circuit_breaker import CircuitBreaker
from gateway.redis.scripts import ScriptClient
from gateway.redis.timeouts import is_timeout
from gateway.tasks import TaskScope
from gateway.types import TenantId

LIFETIME: Final = 86_400.0
"""Seconds from when a key is first seen for which its answer is replayed."""
_FAILURES: Final = (RedisError, OSError)
_RENEWALS: Final = 3
_DRAIN: Final = 2.0


class ClaimOutcome(StrEnum):
    """Says who has a key; the values are the script's."""

    OWNED = "owned"
    """The caller, who runs the request now."""
    RUNNING = "running"
    """Another, who runs it now."""
    DONE = "done"
    """Nobody any more: there is an answer."""
    OTHER = "other"
    """A different request."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the outcome of a claim.

    `first` is when the key was first seen (seconds since the epoch, where the caller owns it),
    `answer` what `finish` stored.
    """

    outcome: ClaimOutcome
    first: float = 0.0
    answer: bytes = b""


class IdempotencyStatistics(msgspec.Struct, kw_only=True):
    """Counts claims by their outcome since the start, and calls of Redis that failed."""

    owned: int = 0
    done: int = 0
    running: int = 0
    other: int = 0
    failures: int = 0


class IdempotencyStore:
    """Claims and finishes keys of tenants; entered by the worker.

    `config` gives the bounds that apply now. A silent Redis is not asked for a second after a
    time-out, so that requests with a key fail at once.
    """

    def __init__(
        self,
        *,
        redis: ScriptClient,
        config: Callable[[], IdempotencyConfig],
        monotonic: Callable[[], float],
    ) -> None:
        self._script = redis.register_script(SCRIPT)
        self._config = config
        self._monotonic = monotonic
        self._breaker = CircuitBreaker(slow=inf)
        self._tasks = TaskScope(drain=_DRAIN)
        self._counts = IdempotencyStatistics()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._tasks.__aexit__(*exc_info)

    def statistics(self) -> IdempotencyStatistics:
        """Return the counts so far."""
        return self._counts

    def key(self, tenant: TenantId, name: str) -> "StoredKey":
        """Return the key of that name, to be claimed."""
        return StoredKey(self, tenant, name)

    def record(self, outcome: ClaimOutcome) -> None:
        """Count a claim."""
        setattr(self._counts, outcome, getattr(self._counts, outcome) + 1)

    def start(self, work: Coroutine[object, object, None]) -> None:
        """Run `work` in a task that is awaited at the end."""
        self._tasks.start(work)

    async def call(self, action: str, key: "StoredKey", value: bytes = b"") -> list[Any]:
        """Run the script.

        Raises:
            RedisError, OSError: it is not known whether it ran.
        """
        now = self._monotonic()
        if not self._breaker.allows(now):
            raise ConnectionError("Redis did not answer lately")
        # redis-py's connections survive no cancellation of the call.
        task = self._tasks.create_task(self._run(action, key, value))
        await asyncio.wait((task,))
        return task.result()

    async def _run(self, action: str, key: "StoredKey", value: bytes) -> list[Any]:
        config = self._config()
        lease, lifetime = int(config.lease * 1000), int(LIFETIME * 1000)
        bounds = (config.max_keys, config.max_bytes)
        arguments = (action, key.name, key.owner, lease, lifetime, *bounds, value)
        sent_at = self._monotonic()
        try:
            reply: list[Any] = await self._script(keys=key.keys, args=arguments)
        except _FAILURES as error:
            self._counts.failures += 1
            self._breaker.failed(now=self._monotonic(), is_certain=is_timeout(error))
            raise
        now = self._monotonic()
        self._breaker.succeeded(now=now, duration=now - sent_at)
        return reply

    @property
    def renewal_interval(self) -> float:
        """The seconds between two renewals of a claim."""
        return self._config().lease / _RENEWALS


class StoredKey:
    """A key of a tenant. Once it is claimed, the claim is renewed until `finish`."""

    def __init__(self, store: IdempotencyStore, tenant: TenantId, name: str) -> None:
        stem = f"{PREFIX}{{{quote(tenant, safe='')}}}"
        self.keys = [f"{stem}:records", f"{stem}:index", f"{stem}:bytes"]
        self.name = name
        self.owner = secrets.token_hex(8)
        self._store = store
        self._is_owned = False
        self._finished = asyncio.Event()

    async def claim(self, print_: bytes) -> Claim:
        """Claim it for a request with this fingerprint.

        Raises:
            DependencyUnavailable: the state Redis cannot be reached.
        """
        try:
            reply = await self._store.call("claim", self, print_)
        except _FAILURES as error:
            raise DependencyUnavailable(
                "Requests with an `Idempotency-Key` cannot be answered now, as the keys are out of"
                " reach; try again, or send the request without a key.",
                retry_after=1.0,
            ) from error
        outcome = ClaimOutcome(reply[0].decode())
        self._store.record(outcome)
        if outcome is ClaimOutcome.OWNED:
            self._is_owned = True
            self._store.start(self._renew())
            return Claim(outcome=outcome, first=reply[1] / 1000)
        return Claim(outcome=outcome, answer=reply[2] if outcome is ClaimOutcome.DONE else b"")

    async def finish(self, answer: bytes = b"") -> None:
        """Store the answer, and end the claim; without an answer the next retry runs again.

        Where Redis cannot be reached, the claim ends with its lease.
        """
        if self._is_owned:
            self._is_owned = False
            self._finished.set()
            with contextlib.suppress(*_FAILURES):  # counted
                await self._store.call("finish", self, answer)

    async def _renew(self) -> None:
        reply = [ClaimOutcome.OWNED.encode()]
        while reply[0] == ClaimOutcome.OWNED.encode():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._finished.wait(), self._store.renewal_interval)
            if self._finished.is_set():
                return
            with contextlib.suppress(*_FAILURES):  # counted
                reply = await self._store.call("renew", self)
