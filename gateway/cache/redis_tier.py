"""Implements the Redis tier of the result cache.

Simultaneous lookups share one `MGET`. Entries are collected for some milliseconds before they are
written, so that they share a call.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Self

import msgspec
from msgspec.structs import replace

from gateway.cache.base import LookupCallback, PendingLookup, RemoteStatistics
from gateway.cache.claims import PER_KEY, Claims
from gateway.cache.entry import (
    CLAIM,
    KEY_PREFIX,
    PACKED,
    PLAIN,
    WORTH_PACKING,
    CachedResult,
    decode_entry,
    is_large,
    map_values,
    pack,
    read_values,
    unpack,
)
from gateway.cache.key import CacheKey
from gateway.redis.circuit_breaker import BreakerState, CircuitBreaker
from gateway.redis.connect import PipelinedClient
from gateway.redis.pipeline import Command, Replies
from gateway.tasks import TaskScope

_DRAIN = 2.0
"""Maximum seconds for writing queued entries at shutdown."""
_GRACE = 0.001
"""Seconds for which a lookup that seems late may still get its response.

The response of such a lookup has arrived in time if the event loop was delayed, because after a
delay the loop runs timers before it reads responses.
"""
_MAX_KEYS = 2048
_GATHERING = 0.005
"""Seconds for which writes are collected. No request waits for a write."""
_MAX_WRITES = 256
_QUEUE_ENTRIES = 8192
_QUEUE_BYTES = 16 * 1024 * 1024
_Set = tuple[bytes, bytes, bytes, bytes, int]
"""A command of Redis: `SET`, the key, the value, `PX`, and the lifetime in milliseconds."""
_encode = msgspec.msgpack.Encoder().encode


class RedisTier:
    """Implements `RemoteTier` with Redis.

    It has two connections, so that reads do not wait for writes.

    Lookups use callbacks. Asyncio tasks are used only to connect, to write, and for Redis Clusters.

    A lookup becomes a miss after `timeout` seconds. For the circuit breaker, a call to Redis that
    takes longer is a failure. After five failures in a row, the circuit breaker opens until Redis
    has responded to a `PING` in time. Requests do not wait for the `PING`, but treat all keys as
    misses.

    Entries are dropped if the queue is full or their write fails. The lifetime of each entry is
    shortened by a random fraction of up to `ttl_jitter`. `random` returns numbers from 0 to 1 for
    this purpose. A claim lasts for `lease` seconds. It tells other workers that the worker with the
    name `claimant` computes a result. When a worker replaces its tier, the new tier keeps this
    name.
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
        self._tasks = TaskScope(drain=_DRAIN)
        self._claims = Claims(
            client=writes,
            timeout=timeout,
            lease=lease,
            monotonic=monotonic,
            breaker=self._breaker,
            tasks=self._tasks,
            name=claimant,
        )
        self._scheduled = False
        self._finds_little = False
        """Whether the last read found less than half of its keys."""
        self._is_reading = False
        """Whether a round trip of a read is in flight.

        Lookups that start during a round trip share the next one. Under load, there are fewer and
        larger reads, and on average a lookup waits for at most half a round trip."""
        self._counts = RemoteStatistics()
        self._jitter = 1000.0 * ttl_jitter
        self._random = random
        self._queue: list[_Set] = []
        self._queued_bytes = 0
        """The size of all queued values."""
        self._is_writing = False
        # Attributes instead of methods, which would only pass the call on. See `RemoteTier`.
        self.has_claimed = self._claims.take
        self.claim, self.renew = self._claims.claim, self._claims.renew
        self.release, self.release_unused = self._claims.release, self._claims.release_unused

    async def __aenter__(self) -> Self:
        # The loop is stored, because `get_running_loop` makes a system call in Python 3.11. The
        # system call would take 5 % of the time of a cache hit.
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        try:
            await self._tasks.__aexit__(None, None, None)
        finally:
            while self._pending:
                self._loop.call_soon(self._time_out, self._pending.popleft())
            await self._read_client.aclose()
            await self._write_client.aclose()

    def fetch_nowait(
        self, keys: Sequence[CacheKey], on_done: LookupCallback, *, claims: bool = False
    ) -> PendingLookup:
        """Look `keys` up, and call `on_done` later with their entries.

        After the timeout, all keys are misses.

        If `claims` is true and most keys of the last read were misses, the lookup also claims the
        missing keys, in the same round trip.
        """
        lookup = PendingLookup(keys, on_done, claims and self._finds_little)
        if self._breaker.state is BreakerState.CLOSED or self._is_usable():
            late = self._timeout + PER_KEY * len(keys)
            lookup.timer = self._loop.call_later(
                late, self._loop.call_later, _GRACE, self._time_out, lookup
            )
            self._pending.append(lookup)
            if not self._scheduled:
                self._schedule()
        else:
            self._counts.skipped += len(keys)
            self._loop.call_soon(lookup.miss)
        return lookup

    def store_all(self, entries: Sequence[tuple[CacheKey, CachedResult]], now: float) -> None:
        """Queue entries to be written.

        Redis keeps them for the rest of their lifetime, minus the jitter.
        """
        queue, size, jitter, random = self._queue, self._queued_bytes, self._jitter, self._random
        for (address, tag), entry in entries:
            milliseconds = int((entry.expires_at - now) * (1000.0 - jitter * random()))
            if milliseconds < 1:
                continue
            # This is the code of `encode_entry`, inlined to save a call for each entry.
            value = PLAIN + tag + _encode(entry)
            if len(queue) >= _QUEUE_ENTRIES or size + len(value) > _QUEUE_BYTES:
                self._counts.dropped += 1
                continue
            queue.append((b"SET", KEY_PREFIX + address, value, b"PX", milliseconds))
            size += len(value)
        self._queued_bytes = size
        if queue and not self._is_writing:
            self._is_writing = True
            self._tasks.start(self._write())

    def statistics(self) -> RemoteStatistics:
        """Return counts for metrics and tests."""
        return replace(
            self._counts,
            claimed=self._claims.seen,
            queued=len(self._queue),
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
        self._breaker.succeeded(now=now, duration=now - started - PER_KEY * commands)

    def _schedule(self) -> None:
        self._scheduled = True
        self._loop.call_soon(self._send)

    def _time_out(self, lookup: PendingLookup) -> None:
        if lookup.on_done is not None:
            self._counts.timeouts += 1
            lookup.miss()

    def _send(self) -> None:
        """Send the pending lookups, unless a round trip is in flight."""
        self._scheduled = False
        batch: list[PendingLookup] = []
        size = 0
        while self._pending and size < _MAX_KEYS and not self._is_reading:
            lookup = self._pending.popleft()
            if lookup.on_done is not None:
                batch.append(lookup)
                size += len(lookup.keys)
        if not batch:
            return
        self._is_reading = True
        self._counts.reads += 1
        names = [KEY_PREFIX + key.address for lookup in batch for key in lookup.keys]
        claimed = [key for lookup in batch if lookup.claims for key in lookup.keys]
        commands = [(b"MGET", *names), *self._claims.commands(claimed)]
        on_done = partial(self._replied, batch, claimed, size, self._monotonic())
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
        values = None if isinstance(replies, OSError) else read_values(replies[0], count)
        if values is None or isinstance(replies, OSError):
            self._counts.read_errors += 1
            self._breaker.failed(now=self._monotonic())
            self._finish_read(batch, None)
            return
        self._note_call(started, commands=count + len(claimed))
        self._finds_little = 2 * values.count(None) > count
        if claimed:
            self._claims.read_replies(claimed, replies[1:])
            for lookup in batch:
                if lookup.is_cancelled and lookup.claims:
                    self._claims.release_unused(lookup.keys)
        if any(values) and is_large(values):
            self._tasks.start(self._unpack(batch, values))
        else:
            self._finish_read(batch, values)

    async def _unpack(self, batch: list[PendingLookup], read: list[bytes | None]) -> None:
        values: list[bytes | None] | None = None
        try:
            values = await map_values(unpack, read)
        finally:
            self._finish_read(batch, values)

    def _finish_read(self, batch: list[PendingLookup], values: list[bytes | None] | None) -> None:
        """End the lookups of a read that found `values`. `None` means that the read failed."""
        self._is_reading = False
        if self._pending and not self._scheduled:
            self._schedule()
        place = 0
        for lookup in batch:
            count = len(lookup.keys)
            found = [None] * count if values is None else values[place : place + count]
            place += count
            if lookup.on_done is None:
                continue
            if found.count(None) < count:
                lookup.end(list(map(self._entry, lookup.keys, found)))
                continue
            lookup.end([None] * count)
            if values is not None:
                self._counts.misses += count

    def _entry(self, key: CacheKey, value: bytes | None) -> CachedResult | None:
        """Return the entry in the value that Redis has for a key. Skip claims and other values."""
        counts = self._counts
        if value is None or (value[:1] == CLAIM and self._claims.read(key, value)):
            counts.misses += 1
            return None
        try:
            entry = decode_entry(key, unpack(value) if value[:1] == PACKED else value)
        except Exception:  # noqa: BLE001 - the read's other values must be returned
            counts.corrupt += 1
            return None
        if entry is None:
            counts.mismatches += 1
        else:
            counts.hits += 1
        return entry

    async def _write(self) -> None:
        """Write until the queue is empty. If a write fails, its entries are dropped and counted."""
        try:
            while self._queue:
                if len(self._queue) < _MAX_WRITES:
                    await asyncio.sleep(_GATHERING)
                batch, self._queue = self._queue[:_MAX_WRITES], self._queue[_MAX_WRITES:]
                sizes = [len(value) for _, _, value, _, _ in batch]
                self._queued_bytes -= sum(sizes)
                if not self._is_usable():
                    self._counts.skipped += len(batch)
                    continue
                await self._send_sets(
                    await _packed(batch) if max(sizes) >= WORTH_PACKING else batch
                )
        finally:
            self._is_writing = False

    async def _send_sets(self, batch: list[_Set]) -> None:
        started = self._monotonic()
        try:
            replies = await self._write_client.execute(batch)
        except OSError:
            self._counts.write_errors += len(batch)
            self._breaker.failed(now=self._monotonic())
            return
        self._note_call(started, commands=len(batch))
        refused = sum([isinstance(reply, Exception) for reply in replies])
        self._counts.write_errors += refused
        self._counts.written += len(batch) - refused


async def _packed(batch: list[_Set]) -> list[_Set]:
    """Return the commands. Their values are compressed if that saves space."""
    values = await map_values(pack, [value for _, _, value, _, _ in batch])
    return [
        (command, name, packed, option, milliseconds)
        for (command, name, _, option, milliseconds), packed in zip(batch, values, strict=True)
    ]
