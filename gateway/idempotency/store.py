"""Stores who runs the request of an idempotency key, and its answer, in the state Redis.

A key is claimed before its request runs. The claim is a lease that the owner renews: when the owner
dies, the next retry takes the claim over. What is then recorded twice is counted once, by its id
(`gateway.api.idempotent_requests.id_of`), so that a claim need not be exclusive for billing to be
right.

A tenant has three keys in one slot: a hash with a record for each idempotency key, a sorted set of
their names by the time they were first seen (ms), and the bytes of all. A record is

    fingerprint (16 bytes) | first seen (13 digits, ms) | lease ends (13 digits, ms) | owner (16)
    | answer (the rest; empty while there is none)

The oldest are removed when they are too old, too many, or too large together. All three keys
expire when the tenant has used none for so long.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from enum import StrEnum
from math import inf
from typing import Annotated, Any, Final, Self
from urllib.parse import quote

import msgspec
from redis.exceptions import RedisError

from sluicegate.gateway.config.document import IdempotencyConfig
from sluicegate.gateway.errors import DeadlineExceeded, DependencyUnavailable
from sluicegate.gateway.redis.circuit_breaker import CircuitBreaker
from sluicegate.gateway.redis.scripts import ScriptClient
from sluicegate.gateway.redis.timeouts import is_timeout
from sluicegate.gateway.tasks import TaskScope, pause
from sluicegate.gateway.types import TenantId
from sluicegate.wire.metric_declaration import counter

LIFETIME: Final = 86_400.0
"""Seconds from when a key is first seen for which its answer is replayed."""
_FAILURES: Final = (RedisError, OSError)
_RENEWALS: Final = 3
_DRAIN: Final = 2.0
_LEAST_TIME: Final = 0.1
"""Seconds that the end of a claim may take, even if the request has less."""
_PREFIX: Final = "sg:idem:"
"""Begins the names of all keys; the tenant follows, as their hash tag."""
HEAD_BYTES: Final = 58
"""The bytes of a record before its answer."""
OVERHEAD_BYTES: Final = 250
"""What a record is counted for beside its own bytes: about what Redis needs to find it."""

_SCRIPT: Final = f"""
local HEAD, OVERHEAD = {HEAD_BYTES}, {OVERHEAD_BYTES}
local records, index, total = KEYS[1], KEYS[2], KEYS[3]
local action, name, owner = ARGV[1], ARGV[2], ARGV[3]
local lease, ttl, most, most_bytes = \
tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local function write(print, first, till, holder, answer)
  local old = redis.call('HSTRLEN', records, name)
  local record = print .. string.format('%013d%013d', first, till) .. holder .. answer
  redis.call('HSET', records, name, record)
  if old == 0 then
    redis.call('ZADD', index, first, name)
    old = -OVERHEAD
  end
  redis.call('INCRBY', total, #record - old)
end

local function forget(one)
  local size = redis.call('HSTRLEN', records, one)
  redis.call('ZREM', index, one)
  if size > 0 then
    redis.call('HDEL', records, one)
    redis.call('DECRBY', total, size + OVERHEAD)
  end
end

local function make_room(count, bytes)
  for _ = 1, 100 do
    local oldest = redis.call('ZRANGE', index, 0, 0, 'WITHSCORES')
    if not oldest[1] or oldest[1] == name then return end
    local used = tonumber(redis.call('GET', total) or '0')
    local held = redis.call('ZCARD', index)
    if oldest[2] + ttl > now and held + count <= most and used + bytes <= most_bytes then
      return
    end
    forget(oldest[1])
  end
end

local record = redis.call('HGET', records, name)
local print, first, till, holder, answer
if record then
  print, first = string.sub(record, 1, 16), tonumber(string.sub(record, 17, 29))
  till, holder = tonumber(string.sub(record, 30, 42)), string.sub(record, 43, HEAD)
  answer = string.sub(record, HEAD + 1)
  if first + ttl <= now then
    forget(name)
    record = false
  end
end

if action == 'claim' then
  if record and print ~= ARGV[8] then return {{'other'}} end
  if record and answer ~= '' then return {{'done', first, answer}} end
  if record and till > now then return {{'running', till - now}} end
  if not record then
    first = now
    make_room(1, HEAD + OVERHEAD)
  end
  write(ARGV[8], first, now + lease, owner, '')
  for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, ttl + 60000) end
  return {{'owned', first}}
end

if not record or holder ~= owner then return {{'lost'}} end
if action == 'renew' then
  write(print, first, now + lease, owner, answer)
  return {{'owned', first}}
end
local stored = ARGV[8]
if stored ~= '' then
  make_room(0, #stored)
  if tonumber(redis.call('GET', total) or '0') + #stored > most_bytes then stored = '' end
end
write(print, first, 0, owner, stored)
return {{'owned', first}}
"""
"""Keys: records, index, total. Arguments: what to do (`claim`, `renew` or `finish`), the name of
the idempotency key, the owner, lease and lifetime (ms), the most keys and bytes; then the
fingerprint of a claim, or the answer to keep."""


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


_CLAIMS: Final = counter(
    "sluicegate_idempotency_claims_total",
    "Requests with an idempotency key. `outcome`: `owned` (the first request), `done` (the first "
    "response was replayed), `running` (the first request is not answered yet), `other` (a "
    "different request used the key).",
    "outcome",
)
_REPLAYS: Final = counter(
    "sluicegate_idempotent_replays_total", "Responses replayed for a repeated idempotency key."
)
_UNCHECKED: Final = counter(
    "sluicegate_idempotency_failures_total",
    "Idempotency keys that were not checked because Redis failed.",
)


class IdempotencyStatistics(msgspec.Struct, kw_only=True):
    """Counts claims by their outcome since the start, and calls of Redis that failed."""

    owned: Annotated[int, _CLAIMS("owned")] = 0
    done: Annotated[int, _CLAIMS("done"), _REPLAYS] = 0
    running: Annotated[int, _CLAIMS("running")] = 0
    other: Annotated[int, _CLAIMS("other")] = 0
    failures: Annotated[int, _UNCHECKED] = 0


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
        self._script = redis.register_script(_SCRIPT)
        self._config = config
        self._monotonic = monotonic
        self._breaker = CircuitBreaker(slow=inf)
        self.tasks = TaskScope(drain=_DRAIN)
        """Calls of Redis, which its client lets nobody cancel, and renewals."""
        self._counts = IdempotencyStatistics()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.tasks.__aexit__(*exc_info)

    def statistics(self) -> IdempotencyStatistics:
        """Return the counts so far."""
        return self._counts

    def key(self, tenant: TenantId, name: str, *, deadline: float) -> "StoredKey":
        """Return the key of that name, to be claimed by a request with this deadline."""
        return StoredKey(self, tenant, name, deadline=deadline)

    def record(self, outcome: ClaimOutcome) -> None:
        """Count a claim."""
        setattr(self._counts, outcome, getattr(self._counts, outcome) + 1)

    async def call(self, action: str, key: "StoredKey", value: bytes = b"") -> list[Any]:
        """Run the script, in one of `tasks`.

        Raises:
            RedisError, OSError: it is not known whether it ran.
        """
        if not self._breaker.allows(self._monotonic()):
            raise ConnectionError("Redis did not answer lately")
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
    """A key of a tenant. Once it is claimed, the claim is renewed until `finish`.

    The request waits for Redis until its deadline only. A call that takes longer goes on, until the
    client of Redis gives it up.
    """

    def __init__(
        self, store: IdempotencyStore, tenant: TenantId, name: str, *, deadline: float
    ) -> None:
        stem = f"{_PREFIX}{{{quote(tenant, safe='')}}}"
        self.keys = [f"{stem}:records", f"{stem}:index", f"{stem}:bytes"]
        self.name = name
        self.owner = secrets.token_hex(8)
        self._store = store
        self.deadline = deadline
        """When the request must be answered (the loop's time)."""
        self._is_owned = False
        self._finished = asyncio.Event()

    async def claim(self, print_: bytes) -> Claim:
        """Claim it for a request with this fingerprint.

        Raises:
            DependencyUnavailable: the state Redis cannot be reached.
            DeadlineExceeded: it does not answer by the deadline. A claim that it then grants ends
                at once.
        """
        call = self._store.tasks.create_task(self._claim(print_))
        try:
            await asyncio.wait((call,), timeout=self.deadline - _now())
        finally:
            if not call.done():
                self._store.tasks.start(self._release(call))
        if not call.done():
            raise DeadlineExceeded.during("the look-up of the idempotency key")
        claim = call.result()
        if claim.outcome is ClaimOutcome.OWNED:
            self._is_owned = True
            self._store.tasks.start(self._renew())
        return claim

    async def finish(self, answer: bytes = b"") -> None:
        """Store the answer, and end the claim; without an answer the next retry runs again.

        Return at the deadline or 0.1 s from now, whichever is later, even if Redis has not stored
        the answer yet. Where Redis cannot be reached, the claim ends with its lease.
        """
        if self._is_owned:
            self._is_owned = False
            self._finished.set()
            call = self._store.tasks.create_task(self._finish(answer))
            await asyncio.wait((call,), timeout=max(self.deadline - _now(), _LEAST_TIME))

    async def _claim(self, print_: bytes) -> Claim:
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
            return Claim(outcome=outcome, first=reply[1] / 1000)
        return Claim(outcome=outcome, answer=reply[2] if outcome is ClaimOutcome.DONE else b"")

    async def _release(self, call: asyncio.Task[Claim]) -> None:
        """End the claim of a request that waits for it no more."""
        with contextlib.suppress(DependencyUnavailable):  # counted
            if (await call).outcome is ClaimOutcome.OWNED:
                await self._finish(b"")

    async def _finish(self, answer: bytes) -> None:
        with contextlib.suppress(*_FAILURES):  # counted
            await self._store.call("finish", self, answer)

    async def _renew(self) -> None:
        reply = [ClaimOutcome.OWNED.encode()]
        while reply[0] == ClaimOutcome.OWNED.encode():
            await pause(self._finished, self._store.renewal_interval)
            if self._finished.is_set():
                return
            with contextlib.suppress(*_FAILURES):  # counted
                reply = await self._store.call("renew", self)


def _now() -> float:
    return asyncio.get_running_loop().time()
