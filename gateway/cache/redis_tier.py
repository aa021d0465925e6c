"""Implements the Redis tier of the result cache: concurrent look-ups share one MGET."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Self

from msgspec.structs import replace

from gateway.cache.base import LookupCallback, PendingLookup, RemoteStatistics
from gateway.cache.claims import Claims
from gateway.cache.entry import (
    PACKED,
    CachedResult,
    is_large,
    map_values,
    read_values,
    unpack,
)
from gateway.cache.key import CacheKey
from gateway.cache.redis_writer import RedisWriter
from gateway.cache.value_reader import ValueReader
from gateway.redis.circuit_breaker import BreakerState, CircuitBreaker
from gateway.redis.connect import PipelinedClient
from gateway.redis.pipeline import Command, Replies
from gateway.tasks import CallbackBatch, TaskScope, log_failure

KEY_PREFIX = b"sg:r:"
_MOST_READS = 1
"""Round trips in flight. Look-ups that come meanwhile go with the next: under load fewer and
larger reads, and the time to wait is at most half a round trip."""
_DRAIN = 2.0
"""Seconds that queued writes are given at shutdown."""
_GRACE = 0.001
"""Seconds until a late look-up is looked at once more: a loop that was held up runs its timers
before it reads what has long arrived."""
_PER_KEY = 20e-6
"""Seconds that each key adds to the time a call may take: 2,048 vectors are no slow Redis."""
_MANY_KEYS = 64  # a look-up of more has its own timer: others are not late with it
_MOST_KEYS = 2048


class RedisTier:
    """A `RemoteTier` over two connections, which it closes: reads do not wait behind writes.

    Look-ups run by callback; tasks connect, write, and call clusters. A look-up is a miss after
    `timeout`; a call that takes longer counts as failed, and after five in a row the circuit
    breaker opens until Redis has answered a `PING` in time. No request waits for that. `random`
    (0 to 1) shortens lifetimes by up to `ttl_jitter`. A claim lies under the address of the answer
    to come, for `lease` seconds, and names `claimant`: tiers of one worker share that name.
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
        self.batch = CallbackBatch()
        """What one read found is told within it."""
        self._pending: deque[PendingLookup] = deque()
        self._timeless: list[PendingLookup] = []
        """Look-ups of this event-loop iteration: their time-out has not begun."""
        self._timed: deque[tuple[float, list[PendingLookup]]] = deque()
        """Look-ups by the time when they are late, ended ones included."""
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
        # Attributes, as a method would be one more call for what each item takes.
        self.store_all: Callable[[Sequence[tuple[CacheKey, CachedResult]], float], None]
        self.store_all = self._writer.add
        """Queues entries to be written with what is left of their lives, less the jitter."""
        self.has_claimed: Callable[[Sequence[CacheKey]], bool] = self._claims.take
        """Tells, once, whether look-ups have claimed all of some keys."""

    async def __aenter__(self) -> Self:
        # Kept: to ask for it is a system call in Python 3.11, a twentieth of a hit in Redis.
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
    ) -> PendingLookup:
        """Call `on_done` later with what Redis has of `keys`; a miss where it is too late.

        While most keys are not found, the same round trip claims them.
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
        return lookup

    async def claim(
        self, keys: Sequence[CacheKey], is_current: Callable[[CachedResult], bool]
    ) -> list[bool]:
        """Claim `keys` with others of this iteration; say which another worker computes."""
        if self._breaker.state is not BreakerState.CLOSED:
            return [False] * len(keys)
        within = self._timeout + _PER_KEY * len(keys)
        return await self._claims.claim(keys, is_current, within=within)

    def release_unused(self, keys: Sequence[CacheKey]) -> None:
        """End claims that look-ups made on `keys`, and that nobody has taken."""
        if unused := self._claims.take_each(keys):
            self.release(unused)

    def renew(self, keys: Sequence[CacheKey]) -> None:
        """Let the claims on `keys` last for another lease."""
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
        """Tell whether the breaker is closed; start a probe where one is due."""
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
        """Let the breaker know of a call that was answered."""
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
        """Have the look-ups of this iteration end in time, all by one timer: each costs as much."""
        begun, self._timeless = self._timeless, []
        most = max([len(lookup.keys) for lookup in begun])
        if most > _MANY_KEYS:
            begun, most = self._time_large(begun)
        late = self._timeout + _PER_KEY * most
        self._timed.append((self._loop.time() + late, begun))
        if self._timer is None:
            self._timer = self._call_late(late, self._time_out_late)

    def _time_large(self, begun: list[PendingLookup]) -> tuple[list[PendingLookup], int]:
        """Give large look-ups timers of their own; return the others, and the most keys of one."""
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
        """End the look-ups whose time is over, and forget those that have ended."""
        now, timed = self._loop.time(), self._timed
        while timed and (timed[0][0] <= now or all(one.on_done is None for one in timed[0][1])):
            self._time_out(timed.popleft()[1])
        self._timer = None
        if timed:
            self._timer = self._call_late(max(0.0, timed[0][0] - now), self._time_out_late)

    def _time_out(self, lookups: Iterable[PendingLookup]) -> None:
        with self.batch:
            for lookup in lookups:
                if lookup.on_done is not None:
                    self._counts.timeouts += 1
                    lookup.miss()

    def _send(self) -> None:
        """Send the pending look-ups, while a round trip is free."""
        self._scheduled = False
        if self._timeless:
            self._begin_time_out()
        while self._pending and self._reading < _MOST_READS:
            batch: list[PendingLookup] = []
            size = 0
            while self._pending and size < _MOST_KEYS:
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
        except BaseException:  # whatever it was, the next read must not wait for this one
            self._finish_read(batch, None)
            raise

    async def _execute(
        self, commands: Sequence[Command], on_done: Callable[[Replies], None]
    ) -> None:
        replies: Replies = ConnectionError("given up")
        try:
            replies = await self._read_client.execute(commands)
        except OSError as error:
            replies = error.with_traceback(None)  # which would hold this frame, and it the error
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
                for lookup in batch:
                    if lookup.is_cancelled and lookup.claims:
                        self.release_unused(lookup.keys)
            if is_large(read):
                self._tasks.start(self._unpack(batch, read))
                return
        try:
            if read is not None:
                # What is not packed stays as it is: no call for each value.
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
        # An empty value is a fault, which the reader counts.
        if values is None or not (any(values) or b"" in values):
            self._finish_empty_read(batch, is_read=values is not None)
            return
        place = 0
        with self.batch:
            for lookup in batch:
                end = place + len(lookup.keys)
                if lookup.on_done is not None:
                    lookup.end(self._reader.entries(lookup.keys, values[place:end]))
                place = end

    def _finish_empty_read(self, batch: list[PendingLookup], *, is_read: bool) -> None:
        """Have look-ups miss of which nothing was found, or, unless it `is_read`, nothing said."""
        missed = 0
        with self.batch:
            for lookup in batch:
                on_done = lookup.on_done
                if on_done is None:
                    continue
                missed += len(lookup.keys)
                # As `PendingLookup.miss` does, without two calls for each miss.
                lookup.on_done = None
                try:
                    on_done([None] * len(lookup.keys))
                except Exception as bug:  # noqa: BLE001 - it must not keep others of the read waiting
                    log_failure(bug)
        if is_read:
            self._counts.misses += missed
