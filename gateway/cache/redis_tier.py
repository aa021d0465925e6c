"""Implements the Redis tier of the result cache. Simultaneous lookups share one `MGET`."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Self

from msgspec.structs import replace

from sluicegate.gateway.cache.base import LookupCallback, PendingLookup
from sluicegate.gateway.cache.claims import Claims
from sluicegate.gateway.cache.entry import (
    PACKED,
    CachedResult,
    is_large,
    map_values,
    read_values,
    unpack,
)
from sluicegate.gateway.cache.key import CacheKey
from sluicegate.gateway.cache.redis_writer import RedisWriter
from sluicegate.gateway.cache.statistics import RemoteStatistics
from sluicegate.gateway.cache.value_reader import ValueReader
from sluicegate.gateway.redis.circuit_breaker import BreakerState, CircuitBreaker
from sluicegate.gateway.redis.connect import PipelinedClient
from sluicegate.gateway.redis.pipeline import Command, Replies
from sluicegate.gateway.tasks import TaskScope, log_failure

KEY_PREFIX = b"sg:r:"
_MAX_READS = 1
"""The most round trips of reads in flight.

Lookups that start during a round trip share the next one. Under load, there are fewer and larger
reads, and on average a lookup waits for at most half a round trip."""
_DRAIN = 2.0
"""Maximum seconds for writing queued entries at shutdown."""
_GRACE = 0.001
"""Seconds for which a lookup that seems late may still get its response.

The response of such a lookup has arrived in time if the event loop was delayed, because after a
delay the loop runs timers before it reads responses.
"""
_PER_KEY = 20e-6
"""Each key lengthens a call's timeout by this many seconds, so that large calls do not look
slow."""
_MANY_KEYS = 64  # a lookup of more keys gets its own timer, so that other lookups end in time
_MAX_KEYS = 2048
# Read by C code, without a step in Python for each lookup.
_callback = attrgetter("on_done")


class RedisTier:
    """Implements `RemoteTier` with Redis.

    It has two connections, so that reads do not wait for writes.

    Lookups use callbacks. Asyncio tasks are used only to connect, to write, and for Redis Clusters.

    A lookup becomes a miss after `timeout` seconds. For the circuit breaker, a call to Redis that
    takes longer is a failure. After five failures in a row, the circuit breaker opens until Redis
    has responded to a `PING` in time. Requests do not wait for the `PING`, but treat all keys as
    misses.

    The lifetime of each entry is shortened by a random fraction of up to `ttl_jitter`. `random`
    returns numbers from 0 to 1 for this purpose. A claim lasts for `lease` seconds. It tells other
    workers that the worker with the name `claimant` computes a result. When a worker replaces its
    tier, the new tier keeps this name.
    """

    name = "redis"

    def __init__(
        self,
        *,
        reads: PipelinedClient,
        writes: PipelinedClient,
        timeout: float,
        ttl_jitter: float,
        lease: float,
        monotonic: Callable[[], float],
        random: Callable[[], float],
        breaker: CircuitBreaker | None = None,
        claimant: bytes | None = None,
    ) -> None:
        self._read_client = reads
        self._write_client = writes
        self._timeout = timeout
        self._monotonic = monotonic
        self._breaker = breaker or CircuitBreaker(slow=timeout)
        self._pending: deque[PendingLookup] = deque()
        self._timeless: list[PendingLookup] = []
        """Lookups of this event-loop iteration. Their timeouts have not started."""
        self._timed: deque[tuple[float, list[PendingLookup]]] = deque()
        """Lookups with the time when they become late. Some of them may have ended."""
        self._timer: asyncio.TimerHandle | None = None
        self._tasks = TaskScope(drain=_DRAIN)
        self._claims = Claims(
            prefix=KEY_PREFIX,
            client=writes,
            lease=lease,
            monotonic=monotonic,
            tasks=self._tasks,
            name=claimant,
        )
        self._scheduled = False
        self._finds_little = False
        """Whether the last read found less than half of its keys."""
        self._reading = 0
        self._counts = RemoteStatistics()
        self._reader = ValueReader(claims=self._claims, counts=self._counts)
        self._writer = RedisWriter(
            client=writes,
            prefix=KEY_PREFIX,
            ttl_jitter=ttl_jitter,
            random=random,
            monotonic=monotonic,
            tasks=self._tasks,
            counts=self._counts,
            is_usable=self._is_usable,
            on_call=self._note_write,
        )
        # These are attributes instead of methods, because a method would cost one more call for
        # each item.
        self.store_all: Callable[[Sequence[tuple[CacheKey, CachedResult]], float], None]
        self.store_all = self._writer.add
        """Queues entries to be written. Redis keeps them for the rest of their lifetime, minus the
        jitter."""
        self.has_claimed: Callable[[Sequence[CacheKey]], bool] = self._claims.take
        """Returns whether lookups have claimed all keys. If so, passes the claims to the caller."""

    async def __aenter__(self) -> Self:
        # The loop is stored, because `get_running_loop` makes a system call in Python 3.11. The
        # system call would take 5 % of the time of a cache hit.
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._claims.close()
        try:
            await self._tasks.__aexit__(None, None, None)
        finally:
            pending, self._pending = self._pending, deque()
            self._loop.call_soon(self._time_out, pending)
            await self._read_client.aclose()
            await self._write_client.aclose()

    def fetch_nowait(
        self, keys: Sequence[CacheKey], on_done: LookupCallback, *, claims: bool = False
    ) -> None:
        """Look `keys` up, and call `on_done` later with their entries.

        After the timeout, all keys are misses.

        If `claims` is true and most keys of the last read were misses, the lookup also claims the
        missing keys, in the same round trip.
        """
        lookup = PendingLookup(keys, on_done, claims and self._finds_little)
        if self._breaker.state is BreakerState.CLOSED or self._is_usable():
            self._pending.append(lookup)
            self._timeless.append(lookup)
            if not self._scheduled:
                self._schedule()
        else:
            self._counts.skipped += len(keys)
            self._loop.call_soon(lookup.miss)

    async def claim(
        self, keys: Sequence[CacheKey], is_current: Callable[[CachedResult], bool]
    ) -> list[bool]:
        """Claim `keys`. Return for each key whether another worker takes care of its result.

        The other worker is computing the result, or has just stored it.
        """
        if self._breaker.state is not BreakerState.CLOSED:
            return [False] * len(keys)
        within = self._timeout + _PER_KEY * len(keys)
        return await self._claims.claim(keys, is_current, within=within)

    def release_unused(self, keys: Sequence[CacheKey]) -> None:
        """End claims on `keys` that lookups made and that nobody has taken over."""
        if unused := self._claims.take_each(keys):
            self.release(unused)

    def renew(self, keys: Sequence[CacheKey]) -> None:
        """Extend the claims on `keys` to a full lease."""
        if self._breaker.state is BreakerState.CLOSED:
            self._claims.renew(keys)

    def release(self, keys: Sequence[CacheKey]) -> None:
        """End the claims on `keys`."""
        if self._breaker.state is BreakerState.CLOSED:
            self._claims.release(keys)

    def statistics(self) -> RemoteStatistics:
        """Return counts for metrics and tests."""
        return replace(
            self._counts,
            claimed=self._claims.seen,
            queued=len(self._writer),
            breaker=self._breaker.state,
            breaker_opened=self._breaker.opened,
        )

    def _is_usable(self) -> bool:
        """Return whether the circuit breaker is closed. If a probe of Redis is due, start it."""
        if self._breaker.state is BreakerState.CLOSED:
            return True
        if self._breaker.allows(self._monotonic()):
            self._tasks.start(self._probe())
        return False

    async def _probe(self) -> None:
        started = self._monotonic()
        try:
            (reply,) = await self._read_client.execute([(b"PING",)])
            if isinstance(reply, Exception):
                raise ConnectionError("Redis refused") from reply
        except OSError:
            self._breaker.failed(now=self._monotonic())
        else:
            self._note_call(started, commands=1)

    def _note_call(self, started: float, *, commands: int) -> None:
        """Report a successful call to the circuit breaker."""
        now = self._monotonic()
        self._breaker.succeeded(now=now, duration=now - started - _PER_KEY * commands)

    def _note_write(self, started: float, commands: int | None) -> None:
        if commands is None:
            self._breaker.failed(now=self._monotonic())
        else:
            self._note_call(started, commands=commands)

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._send)

    def _begin_time_out(self) -> None:
        """Start the timeout of this iteration's lookups. One timer for all lookups saves time."""
        begun, self._timeless = self._timeless, []
        most = max([len(lookup.keys) for lookup in begun])
        if most > _MANY_KEYS:
            begun, most = self._time_large(begun)
        late = self._timeout + _PER_KEY * most
        self._timed.append((self._loop.time() + late, begun))
        if self._timer is None:
            self._timer = self._call_late(late, self._time_out_late)

    def _time_large(self, begun: list[PendingLookup]) -> tuple[list[PendingLookup], int]:
        """Give each large lookup its own timer.

        Returns:
            The lookups that are not large, and the number of keys of the largest of these.
        """
        others: list[PendingLookup] = []
        for lookup in begun:
            if len(lookup.keys) > _MANY_KEYS:
                end = partial(self._time_out, [lookup])
                self._call_late(self._timeout + _PER_KEY * len(lookup.keys), end)
            else:
                others.append(lookup)
        return others, max([len(lookup.keys) for lookup in others], default=0)

    def _call_late(self, seconds: float, call: Callable[[], object]) -> asyncio.TimerHandle:
        return self._loop.call_later(seconds, self._loop.call_later, _GRACE, call)

    def _time_out_late(self) -> None:
        """End the lookups whose timeout has passed, and drop lookups that have ended."""
        now, timed = self._loop.time(), self._timed
        while timed and (timed[0][0] <= now or not any(map(_callback, timed[0][1]))):
            self._time_out(timed.popleft()[1])
        self._timer = None
        if timed:
            self._timer = self._call_late(max(0.0, timed[0][0] - now), self._time_out_late)

    def _time_out(self, lookups: Iterable[PendingLookup]) -> None:
        for lookup in lookups:
            if lookup.on_done is not None:
                self._counts.timeouts += 1
                lookup.miss()

    def _send(self) -> None:
        """Send the pending lookups, unless too many round trips are in flight."""
        self._scheduled = False
        if self._timeless:
            self._begin_time_out()
        while self._pending and self._reading < _MAX_READS:
            batch: list[PendingLookup] = []
            size = 0
            while self._pending and size < _MAX_KEYS:
                lookup = self._pending.popleft()
                if lookup.on_done is not None:
                    batch.append(lookup)
                    size += len(lookup.keys)
            if batch:
                self._read(batch)

    def _read(self, batch: list[PendingLookup]) -> None:
        self._reading += 1
        self._counts.reads += 1
        names = [KEY_PREFIX + key.address for lookup in batch for key in lookup.keys]
        claimed = [key for lookup in batch if lookup.claims for key in lookup.keys]
        commands = [(b"MGET", *names), *self._claims.commands(claimed)]
        on_done = partial(self._replied, batch, claimed, len(names), self._monotonic())
        try:
            if not self._read_client.execute_nowait(commands, on_done):
                self._tasks.start(self._execute(commands, on_done))
        except BaseException:  # after any error, the next read must be able to start
            self._finish_read(batch, None)
            raise

    async def _execute(
        self, commands: Sequence[Command], on_done: Callable[[Replies], None]
    ) -> None:
        replies: Replies = ConnectionError("given up")
        try:
            replies = await self._read_client.execute(commands)
        except OSError as error:
            # The traceback is dropped, because it would form a reference cycle.
            replies = error.with_traceback(None)
        finally:
            on_done(replies)

    def _replied(
        self,
        batch: list[PendingLookup],
        claimed: list[CacheKey],
        count: int,
        started: float,
        replies: Replies,
    ) -> None:
        read = None if isinstance(replies, OSError) else read_values(replies[0], count)
        values: list[bytes | None] | None = None
        if read is None or isinstance(replies, OSError):
            self._counts.read_errors += 1
            self._breaker.failed(now=self._monotonic())
        else:
            self._note_call(started, commands=count + len(claimed))
            self._finds_little = 2 * read.count(None) > count
            if claimed:
                self._claims.read_replies(claimed, replies[1:])
            if is_large(read):
                self._tasks.start(self._unpack(batch, read))
                return
        try:
            if read is not None:
                # The decompression function is called only for compressed values.
                values = [
                    unpack(value) if value and value[:1] == PACKED else value for value in read
                ]
        finally:
            self._finish_read(batch, values)

    async def _unpack(self, batch: list[PendingLookup], read: list[bytes | None]) -> None:
        values: list[bytes | None] | None = None
        try:
            values = await map_values(unpack, read)
        finally:
            self._finish_read(batch, values)

    def _finish_read(self, batch: list[PendingLookup], values: list[bytes | None] | None) -> None:
        self._reading -= 1
        if self._pending:
            self._schedule()
        # The reader counts an empty value as damaged.
        if values is None or not (any(values) or b"" in values):
            self._finish_empty_read(batch, is_read=values is not None)
            return
        place = 0
        for lookup in batch:
            end = place + len(lookup.keys)
            if lookup.on_done is not None:
                lookup.end(self._reader.entries(lookup.keys, values[place:end]))
            place = end

    def _finish_empty_read(self, batch: list[PendingLookup], *, is_read: bool) -> None:
        """End lookups for which no entry was found. `is_read` is false if the read failed."""
        missed = 0
        for lookup in batch:
            on_done = lookup.on_done
            if on_done is None:
                continue
            missed += len(lookup.keys)
            # This is the code of `PendingLookup.miss`, inlined to save two calls for each miss.
            lookup.on_done = None
            try:
                on_done([None] * len(lookup.keys))
            except Exception as bug:  # noqa: BLE001 - other lookups of the read must continue
                log_failure(bug)
        if is_read:
            self._counts.misses += missed
