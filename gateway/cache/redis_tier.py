"""The result cache's Redis tier: keys asked for at about the same time go out as one MGET."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Self

from gateway.cache.base import RemoteStatistics
from gateway.cache.claims import Claims
from gateway.cache.entry import CachedResult, decode_entry, encode_entry, pack
from gateway.cache.key import CacheKey
from gateway.cache.pending_lookup import PendingLookup, resolve
from gateway.cache.redis_values import each, is_much, read_values, unpacked
from gateway.redis.circuit_breaker import BreakerState, CircuitBreaker
from gateway.redis.connect import Pipe
from gateway.redis.pipeline import Command, Replies
from gateway.tasks import TaskScope

KEY_PREFIX = b"sg:r:"
_MOST_READS = 1
"""Round trips in flight. What is asked for meanwhile goes with the next: under load fewer and
larger reads, and the time to wait is at most half a round trip."""
_GATHERING = 0.005
"""Seconds for which writes are gathered; nobody waits for them."""
_DRAIN = 2.0
"""Seconds that queued writes are given at shutdown."""
_GRACE = 0.001
"""Seconds until a late look-up is looked at once more: a loop that was held up runs its timers
before it reads what has long arrived."""
_PER_KEY = 20e-6
"""Seconds that each key adds to the time a call may take: 2,048 vectors are no slow Redis."""
_MOST_KEYS = 2048
_MOST_WRITES = 256
_QUEUE_ENTRIES = 8192
_QUEUE_BYTES = 16 * 1024 * 1024


class _Write(NamedTuple):
    name: bytes
    value: bytes
    milliseconds: int


class RedisTier:
    """A `RemoteTier` over two connections, which it closes: reads do not wait behind writes.

    Callers are called back; tasks connect, write, and ask clusters. A look-up is told `miss` after
    `timeout` even where Redis has not answered; a call that takes longer is a bad one, and after
    five in a row nothing is asked until Redis has answered a `PING` in time. No request waits for
    that. `random` (0 to 1) shortens lifetimes by up to `ttl_jitter`. A claim lies under the address
    of the answer to come, for `lease` seconds.
    """

    def __init__(
        self,
        *,
        reads: Pipe,
        writes: Pipe,
        timeout: float,
        ttl_jitter: float,
        lease: float,
        monotonic: Callable[[], float],
        random: Callable[[], float],
        breaker: CircuitBreaker | None = None,
    ) -> None:
        self._read_pipe = reads
        self._write_pipe = writes
        self._timeout = timeout
        self._ttl_jitter = ttl_jitter
        self._monotonic = monotonic
        self._random = random
        self._breaker = breaker or CircuitBreaker(slow=timeout)
        self._asks: deque[PendingLookup] = deque()
        self._writes: deque[_Write] = deque()
        self._write_bytes = 0
        self._tasks = TaskScope(drain=_DRAIN)
        self._claims = Claims(
            prefix=KEY_PREFIX, pipe=writes, lease=lease, monotonic=monotonic, tasks=self._tasks
        )
        self._scheduled = False
        self._reading = 0
        self._writing = False
        self._hits = self._misses = self._reads = self._read_errors = self._timeouts = 0
        self._mismatches = self._corrupt = self._skipped = 0
        self._written = self._write_errors = self._dropped = 0

    async def __aenter__(self) -> Self:
        # Kept: to ask for it is a system call in Python 3.11, a twentieth of a hit in Redis.
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._claims.close()
        try:
            await self._tasks.__aexit__(None, None, None)
        finally:
            asks, self._asks = self._asks, deque()
            for ask in asks:
                self._loop.call_soon(self._give_up, ask)
            await self._read_pipe.aclose()
            await self._write_pipe.aclose()

    async def fetch(self, keys: Sequence[CacheKey]) -> list[CachedResult | None]:
        """Return what Redis has of `keys`; a miss for each where it cannot say in time."""
        if not self._is_usable():
            self._skipped += len(keys)
            return [None] * len(keys)
        future: asyncio.Future[list[CachedResult | None]] = self._loop.create_future()
        ask = self._queue(keys, partial(resolve, future))
        try:
            return await future
        finally:
            ask.forget()

    def ask(
        self, keys: Sequence[CacheKey], told: Callable[[list[CachedResult | None]], object]
    ) -> None:
        """Call `told` with what `fetch` would return: once, and not before a later turn."""
        if self._is_usable():
            self._queue(keys, told)
        else:
            self._skipped += len(keys)
            misses: list[CachedResult | None] = [None] * len(keys)
            self._loop.call_soon(told, misses)

    def store(self, key: CacheKey, entry: CachedResult, now: float) -> None:
        """Queue `entry` to be written with what is left of its life, shortened by the jitter."""
        life = (entry.expires_at - now) * (1 - self._ttl_jitter * self._random())
        milliseconds = int(life * 1000)
        if milliseconds < 1:
            return
        value = encode_entry(key, entry)
        if len(self._writes) >= _QUEUE_ENTRIES or self._write_bytes + len(value) > _QUEUE_BYTES:
            self._dropped += 1
            return
        self._writes.append(_Write(KEY_PREFIX + key.address, value, milliseconds))
        self._write_bytes += len(value)
        if not self._writing:
            self._writing = True
            self._tasks.start(self._write())

    async def claim(
        self, keys: Sequence[CacheKey], is_current: Callable[[CachedResult], bool]
    ) -> list[bool]:
        """Claim `keys` with others of this iteration; say which another worker computes."""
        if self._breaker.state is not BreakerState.CLOSED:
            return [False] * len(keys)
        within = self._timeout + _PER_KEY * len(keys)
        return await self._claims.claim(keys, is_current, within=within)

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
        return RemoteStatistics(
            hits=self._hits,
            misses=self._misses,
            reads=self._reads,
            read_errors=self._read_errors,
            timeouts=self._timeouts,
            mismatches=self._mismatches,
            corrupt=self._corrupt,
            claimed=self._claims.seen,
            skipped=self._skipped,
            written=self._written,
            write_errors=self._write_errors,
            dropped=self._dropped,
            queued=len(self._writes),
            breaker=self._breaker.state,
            breaker_opened=self._breaker.opened,
        )

    def _is_usable(self) -> bool:
        """Tell whether Redis is asked; find out, for later, where that is due."""
        if self._breaker.state is BreakerState.CLOSED:
            return True
        if self._breaker.allows(self._monotonic()):
            self._tasks.start(self._probe())
        return False

    async def _probe(self) -> None:
        started = self._monotonic()
        try:
            (reply,) = await self._read_pipe.execute([(b"PING",)])
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

    def _queue(
        self, keys: Sequence[CacheKey], told: Callable[[list[CachedResult | None]], object]
    ) -> PendingLookup:
        ask = PendingLookup(keys, told)
        loop = self._loop
        late = self._timeout + _PER_KEY * len(keys)
        ask.timer = loop.call_later(late, loop.call_later, _GRACE, self._give_up, ask)
        self._asks.append(ask)
        self._schedule()
        return ask

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._send)

    def _give_up(self, ask: PendingLookup) -> None:
        told = ask.told
        if told is not None:
            self._timeouts += 1
            ask.forget()
            told([None] * len(ask.keys))

    def _send(self) -> None:
        """Start reading what was asked for in this tick, and what waited for a free round trip."""
        self._scheduled = False
        while self._asks and self._reading < _MOST_READS:
            batch: list[PendingLookup] = []
            size = 0
            while self._asks and size < _MOST_KEYS:
                ask = self._asks.popleft()
                if ask.told is not None:
                    batch.append(ask)
                    size += len(ask.keys)
            if batch:
                self._read(batch)

    def _read(self, batch: list[PendingLookup]) -> None:
        self._reading += 1
        self._reads += 1
        names = [KEY_PREFIX + key.address for ask in batch for key in ask.keys]
        command = (b"MGET", *names)
        told = partial(self._replied, batch, len(names), self._monotonic())
        try:
            if not self._read_pipe.execute_nowait([command], told):
                self._tasks.start(self._execute(command, told))
        except BaseException:  # whatever it was, the next read must not wait for this one
            self._settle(batch, None)
            raise

    async def _execute(self, command: Command, told: Callable[[Replies], None]) -> None:
        replies: Replies = ConnectionError("given up")
        try:
            replies = await self._read_pipe.execute([command])
        except OSError as error:
            replies = error.with_traceback(None)  # which would hold this frame, and it the error
        finally:
            told(replies)

    def _replied(
        self, batch: list[PendingLookup], count: int, started: float, replies: Replies
    ) -> None:
        read = None if isinstance(replies, OSError) else read_values(replies[0], count)
        values: list[bytes | None] | None = None
        if read is None:
            self._read_errors += 1
            self._breaker.failed(now=self._monotonic())
        else:
            self._note_call(started, commands=count)
            if is_much(read):
                self._tasks.start(self._unpack(batch, read))
                return
        try:
            if read is not None:
                values = list(map(unpacked, read))
        finally:
            self._settle(batch, values)

    async def _unpack(self, batch: list[PendingLookup], read: list[bytes | None]) -> None:
        values: list[bytes | None] | None = None
        try:
            values = await each(unpacked, read)
        finally:
            self._settle(batch, values)

    def _settle(self, batch: list[PendingLookup], values: list[bytes | None] | None) -> None:
        self._reading -= 1
        if self._asks:
            self._schedule()
        place = 0
        loop = self._loop
        for ask in batch:
            end = place + len(ask.keys)
            told = ask.told
            if told is not None:
                entries: list[CachedResult | None] = [None] * len(ask.keys)
                if values is not None:
                    mine = zip(ask.keys, values[place:end], strict=True)
                    entries = [self._entry(key, value) for key, value in mine]
                ask.forget()
                # Not from here: what one of them raises must not keep the others waiting.
                loop.call_soon(told, entries)
            place = end

    def _entry(self, key: CacheKey, value: bytes | None) -> CachedResult | None:
        if value is None:
            self._misses += 1
            return None
        if self._claims.read(key, value):
            self._misses += 1
            return None
        try:
            entry = decode_entry(key, value)
        except Exception:  # noqa: BLE001 - one damaged value must not cost the others of its read
            self._corrupt += 1
            return None
        if entry is None:
            self._mismatches += 1
        else:
            self._hits += 1
        return entry

    async def _write(self) -> None:
        """Write until the queue is empty; errors cost the entries, and are counted."""
        try:
            while self._writes:
                if len(self._writes) < _MOST_WRITES:
                    await asyncio.sleep(_GATHERING)
                batch = [
                    self._writes.popleft() for _ in range(min(len(self._writes), _MOST_WRITES))
                ]
                self._write_bytes -= sum(len(write.value) for write in batch)
                if not self._is_usable():
                    self._skipped += len(batch)
                    continue
                await self._write_batch(batch)
        finally:
            self._writing = False

    async def _write_batch(self, batch: list[_Write]) -> None:
        values = await each(pack, [write.value for write in batch])
        started = self._monotonic()
        try:
            replies = await self._write_pipe.execute(
                [
                    (b"SET", write.name, value, b"PX", write.milliseconds)
                    for write, value in zip(batch, values, strict=True)
                ]
            )
        except OSError:
            self._write_errors += len(batch)
            self._breaker.failed(now=self._monotonic())
            return
        self._note_call(started, commands=len(batch))
        refused = sum(isinstance(reply, Exception) for reply in replies)
        self._write_errors += refused
        self._written += len(batch) - refused
