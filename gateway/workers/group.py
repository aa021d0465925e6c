"""The consumers' side of the stream: every entry is read until somebody acknowledged it."""

import asyncio
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from gateway.events.block import STREAM
from gateway.settings import Settings
from gateway.workers.backoff import BatchSize


class StreamEntry(NamedTuple):
    """An entry of the stream."""

    id: bytes
    fields: Mapping[bytes, bytes]


def consumer_name(settings: Settings) -> str:
    """Return the same name after a restart, so that a worker finds what it had not finished."""
    return f"{socket.gethostname()}-{settings.worker}"


class GroupReader:
    """Reads as `consumer` of `group`; raises what redis-py raises.

    First what this consumer was given and did not acknowledge, as before a crash, an error or a
    restart; then what another has kept for `claim_after` seconds, as it may be dead; then the new.
    Both are looked for at the start and three times in `claim_after`; the former after errors, too.
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
        self._own: bytes | None = b"0"

    async def read(self, *, wait: float) -> list[StreamEntry]:
        """Return entries to process, none if there are none within `wait` seconds."""
        loop = asyncio.get_running_loop()
        until = loop.time() + wait
        entries = await self._read_group(wait)
        if not entries and (left := until - loop.time()) > 0:
            # Whatever replies at once and with nothing must not make the caller spin.
            await asyncio.sleep(left)
        return entries

    async def _read_group(self, wait: float) -> list[StreamEntry]:
        """Read, and make the group where there is none."""
        try:
            return await self._read(wait)
        except ResponseError as error:
            self.again()
            if "NOGROUP" not in str(error):
                raise
            await self._create()
            return await self._read(wait)
        except RedisError:
            self.again()
            raise

    async def acknowledge(self, entries: Sequence[StreamEntry]) -> None:
        """Say that `entries` need not be given to anybody again."""
        try:
            await self._redis.xack(STREAM, self._group, *(entry.id for entry in entries))
        except RedisError:
            self.again()
            raise
        self._count.succeeded()

    def again(self) -> None:
        """Give what was not acknowledged once more, first of all."""
        self._own = b"0"

    def again_in_parts(self) -> None:
        """Give it once more, and fewer entries at a time until that goes well."""
        self._count.failed()
        self.again()

    async def _read(self, wait: float) -> list[StreamEntry]:
        is_due = self._clock() >= self._claim_at
        if is_due and self._own is None:
            # A command of a connection that was given up may have run since, and taken entries.
            self._own = b"0"
        while self._own is not None:
            entries = await self._ask(self._own, None)
            self._own = entries[-1].id if entries else None
            if present := await self._present(entries):
                return present
        if is_due:
            claimed = await self._claim()
            if claimed:
                return claimed
            self._claim_at = self._clock() + self._claim_after / 3
        return await self._ask(b">", max(1, int(wait * 1000)))

    async def _ask(self, start: bytes, block: int | None) -> list[StreamEntry]:
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
        """Acknowledge the entries that are no longer in the stream; return the others."""
        gone = [entry for entry in entries if not entry.fields]
        if gone:
            await self.acknowledge(gone)
        return [entry for entry in entries if entry.fields]

    async def _create(self) -> None:
        try:
            await self._redis.xgroup_create(STREAM, self._group, id="0", mkstream=True)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise


def _entries(reply: Any) -> list[StreamEntry]:
    """Take the entries of the one stream out of a reply, in either version of the protocol."""
    if not reply:
        return []
    found = next(iter(reply.values())) if isinstance(reply, dict) else reply[0][1]
    if found and isinstance(found[0], list):
        found = found[0]
    return [StreamEntry(entry_id, fields or {}) for entry_id, fields in found]
