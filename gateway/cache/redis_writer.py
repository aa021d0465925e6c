"""Writes entries of the result cache to Redis.

Before a write, entries are collected for some milliseconds, so that they share a call.
"""

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from sluicegate.gateway.cache.entry import (
    PLAIN,
    WORTH_PACKING,
    CachedResult,
    map_values,
    pack,
)
from sluicegate.gateway.cache.key import CacheKey
from sluicegate.gateway.cache.statistics import RemoteStatistics
from sluicegate.gateway.redis.connect import PipelinedClient
from sluicegate.gateway.tasks import TaskScope

_GATHERING = 0.005
"""Seconds for which writes are collected. No request waits for a write."""
_MAX_WRITES = 256
_QUEUE_ENTRIES = 8192
_QUEUE_BYTES = 16 * 1024 * 1024
_Set = tuple[bytes, bytes, bytes, bytes, int]
"""A command of Redis: `SET`, the key, the value, `PX`, and the lifetime in milliseconds."""
_encode = msgspec.msgpack.Encoder().encode


class RedisWriter:
    """Queues entries, and writes them in a task.

    Entries are dropped if the queue is full or their write fails.

    The numbers of written and dropped entries are added to `counts`. The lifetime of each entry is
    shortened by a random fraction of up to `ttl_jitter`. `random` returns numbers from 0 to 1 for
    this purpose. `is_usable` returns whether the circuit breaker allows calls to Redis.

    `on_call` is called after each call to Redis. Its arguments are the start time and the number of
    commands. If the call failed, the number is `None`.
    """

    def __init__(
        self,
        *,
        client: PipelinedClient,
        prefix: bytes,
        ttl_jitter: float,
        random: Callable[[], float],
        monotonic: Callable[[], float],
        tasks: TaskScope,
        counts: RemoteStatistics,
        is_usable: Callable[[], bool],
        on_call: Callable[[float, int | None], object],
    ) -> None:
        self._client = client
        self._prefix = prefix
        self._jitter = 1000.0 * ttl_jitter
        self._random = random
        self._monotonic = monotonic
        self._tasks = tasks
        self._counts = counts
        self._is_usable = is_usable
        self._on_call = on_call
        self._queue: list[_Set] = []
        self._sizes: list[int] = []
        """The size of each queued value in bytes."""
        self._bytes = 0
        self._is_writing = False

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, entries: Sequence[tuple[CacheKey, CachedResult]], now: float) -> None:
        """Queue entries to be written.

        Redis keeps them for the rest of their lifetime, minus the jitter.
        """
        queue, sizes, size = self._queue, self._sizes, self._bytes
        prefix, jitter, random = self._prefix, self._jitter, self._random
        for (address, tag), entry in entries:
            milliseconds = int((entry.expires_at - now) * (1000.0 - jitter * random()))
            if milliseconds < 1:
                continue
            # This is the code of `encode_entry`, inlined to save a call for each entry.
            value = PLAIN + tag + _encode(entry)
            own = len(value)
            if len(queue) >= _QUEUE_ENTRIES or size + own > _QUEUE_BYTES:
                self._counts.dropped += 1
                continue
            queue.append((b"SET", prefix + address, value, b"PX", milliseconds))
            sizes.append(own)
            size += own
        self._bytes = size
        if queue and not self._is_writing:
            self._is_writing = True
            self._tasks.start(self._write())

    async def _write(self) -> None:
        """Write until the queue is empty. If a write fails, its entries are dropped and counted."""
        try:
            while self._queue:
                if len(self._queue) < _MAX_WRITES:
                    await asyncio.sleep(_GATHERING)
                batch, largest = self._take()
                if not self._is_usable():
                    self._counts.skipped += len(batch)
                    continue
                if largest >= WORTH_PACKING:
                    batch = await _packed(batch)
                await self._send(batch)
        finally:
            self._is_writing = False

    def _take(self) -> tuple[list[_Set], int]:
        """Remove commands from the queue. Return them, and the bytes of the largest value."""
        batch, self._queue = self._queue[:_MAX_WRITES], self._queue[_MAX_WRITES:]
        sizes, self._sizes = self._sizes[:_MAX_WRITES], self._sizes[_MAX_WRITES:]
        self._bytes -= sum(sizes)
        return batch, max(sizes)

    async def _send(self, batch: list[_Set]) -> None:
        started = self._monotonic()
        try:
            replies = await self._client.execute(batch)
        except OSError:
            self._counts.write_errors += len(batch)
            self._on_call(started, None)
            return
        self._on_call(started, len(batch))
        refused = 0
        if replies.count(b"OK") < len(batch):
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
