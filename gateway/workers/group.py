"""Reads the event stream in a Redis consumer group.

An entry is delivered again until it is acknowledged.
"""

import asyncio
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from sluicegate.gateway.events.block import STREAM
from sluicegate.gateway.settings import Settings
from sluicegate.gateway.workers.backoff import BatchSize


class StreamEntry(NamedTuple):
    """Holds a stream entry."""

    id: bytes
    fields: Mapping[bytes, bytes]


def consumer_name(settings: Settings) -> str:
    """Return this process's name as a consumer in consumer groups.

    The name is the same after a restart, so that the process finds its pending entries.
    """
    return f"{socket.gethostname()}-{settings.worker}"


class GroupReader:
    """Reads entries of the stream as `consumer` of `group`. Methods raise the errors of redis-py.

    Entries are returned in this order:

    - Pending entries of this consumer, which it has not acknowledged because of a crash, an error
      or a restart.
    - Entries that have been pending for another consumer for `claim_after` seconds. That consumer
      may be dead.
    - New entries.

    The reader looks for pending entries at its start, and then every `claim_after` / 3 seconds.
    After an error, it also looks for this consumer's pending entries.
    """

    def __init__(
        self,
        redis: Redis,
        *,
        group: str,
        consumer: str,
        count: int,
        claim_after: float = 15.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._redis = redis
        self._group = group
        self._consumer = consumer
        self._count = BatchSize(count)
        self._claim_after = claim_after
        self._clock = clock
        self._claim_at = 0.0
        self._pending_after: bytes | None = b"0"

    async def read(self, *, wait: float) -> list[StreamEntry]:
        """Return entries to process, or an empty list if no entry arrives within `wait` seconds."""
        loop = asyncio.get_running_loop()
        until = loop.time() + wait
        entries = await self._read_group(wait)
        if not entries and (left := until - loop.time()) > 0:
            # An empty reply may arrive early. The caller must not call again immediately.
            await asyncio.sleep(left)
        return entries

    async def _read_group(self, wait: float) -> list[StreamEntry]:
        """Read entries, and create the group if it does not exist."""
        try:
            return await self._read(wait)
        except ResponseError as error:
            self.reread()
            if "NOGROUP" not in str(error):
                raise
            await self._create()
            return await self._read(wait)
        except RedisError:
            self.reread()
            raise

    async def acknowledge(self, entries: Sequence[StreamEntry]) -> None:
        """Acknowledge `entries`, so that they are not delivered again."""
        try:
            await self._redis.xack(STREAM, self._group, *(entry.id for entry in entries))
        except RedisError:
            self.reread()
            raise
        self._count.succeeded()

    def reread(self) -> None:
        """Make `read` return this consumer's unacknowledged entries again, before other entries."""
        self._pending_after = b"0"

    def reread_smaller(self) -> None:
        """Do as `reread` does, with smaller batches until several batches have succeeded."""
        self._count.failed()
        self.reread()

    async def _read(self, wait: float) -> list[StreamEntry]:
        is_due = self._clock() >= self._claim_at
        if is_due and self._pending_after is None:
            # A command that timed out may still have run, and so have left pending entries.
            self._pending_after = b"0"
        while self._pending_after is not None:
            entries = await self._read_after(self._pending_after, None)
            self._pending_after = entries[-1].id if entries else None
            if present := await self._present(entries):
                return present
        if is_due:
            claimed = await self._claim()
            if claimed:
                return claimed
            self._claim_at = self._clock() + self._claim_after / 3
        return await self._read_after(b">", max(1, int(wait * 1000)))

    async def _read_after(self, start: bytes, block: int | None) -> list[StreamEntry]:
        reply: Any = await self._redis.xreadgroup(
            self._group, self._consumer, {STREAM: start}, count=self._count.now, block=block
        )
        return _entries(reply)

    async def _claim(self) -> list[StreamEntry]:
        reply: Any = await self._redis.xautoclaim(
            STREAM,
            self._group,
            self._consumer,
            min_idle_time=int(self._claim_after * 1000),
            count=self._count.now,
        )
        return await self._present([StreamEntry(i, f or {}) for i, f in reply[1]])

    async def _present(self, entries: list[StreamEntry]) -> list[StreamEntry]:
        """Acknowledge entries that were deleted from the stream; return the others."""
        deleted = [entry for entry in entries if not entry.fields]
        if deleted:
            await self.acknowledge(deleted)
        return [entry for entry in entries if entry.fields]

    async def _create(self) -> None:
        try:
            await self._redis.xgroup_create(STREAM, self._group, id="0", mkstream=True)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise


def _entries(reply: Any) -> list[StreamEntry]:
    """Return the entries in a reply about one stream. The reply has the form of RESP2 or RESP3."""
    if not reply:
        return []
    found = next(iter(reply.values())) if isinstance(reply, dict) else reply[0][1]
    if found and isinstance(found[0], list):
        found = found[0]
    return [StreamEntry(entry_id, fields or {}) for entry_id, fields in found]
