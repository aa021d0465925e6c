"""Appends each block of events to the event stream exactly once, and trims the stream."""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from sluicegate.gateway.events.block import SHIPPED, STREAM, Block
from sluicegate.wire.metric_declaration import counter

BILLING: Final = "billing"

# The script changes the hash of positions and the stream together, so that the two agree even after
# a restart or failover that lost recent writes. The script also makes retries safe, because a retry
# returns `moved` if the first call was executed, but its reply was lost.
_SHIP: Final = """
local shipped = redis.call('HGET', KEYS[2], ARGV[2]) or ''
if shipped ~= ARGV[3] then return 'moved' end
if redis.call('XLEN', KEYS[1]) >= tonumber(ARGV[1]) then return 'full' end
redis.call('XADD', KEYS[1], '*', unpack(ARGV, 5))
redis.call('HSET', KEYS[2], ARGV[2], ARGV[4])
return 'shipped'
"""
# This is a script, because no command returns the last id of a stream without its entry.
_END: Final = """
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
return {redis.call('XLEN', KEYS[1]), last and last[1] or '0-0'}
"""


EVENTS_DROPPED: Final = counter(
    "sluicegate_events_dropped_total",
    "Lost events. `stream`: `usage` (lost in a power cut or machine crash), `request_log` (not "
    "written because the disk was full).",
    "stream",
)


class AppendOutcome(Enum):
    """Says whether a block was appended."""

    SHIPPED = "shipped"
    MOVED = "moved"
    """The log's last block in the stream is not the block that the caller expected."""
    FULL = "full"


class TrimCounts(NamedTuple):
    """Counts the blocks that remain in the stream, and the blocks that were dropped.

    `dropped` blocks were deleted before all consumer groups had read them. `lagging` counts the
    blocks that each group has not acknowledged.
    """

    left: int
    dropped: int
    lagging: Mapping[str, int] = MappingProxyType({})


class EventStream:
    """Writes to the stream `sg:events` in Redis.

    Methods raise the errors of redis-py. The stream holds at most `max_blocks` blocks. Billing
    loses no block, however far it lags. All other consumer groups can lose blocks when they lag by
    half of `max_blocks` or more.
    """

    def __init__(self, redis: Redis, *, max_blocks: int) -> None:
        self._redis = redis
        self._max_blocks = max_blocks
        self._script = redis.register_script(_SHIP)
        self._end = redis.register_script(_END)

    async def ship(self, block: Block, *, after: int | None) -> AppendOutcome:
        """Append `block` if it continues its log.

        The block continues its log if `after` is the last sequence number of the log in the stream.
        Otherwise, nothing is appended, and the result is `MOVED`. If the stream is full, nothing is
        appended, and the result is `FULL`.
        """
        expected = "" if after is None else after
        arguments = [self._max_blocks, block.log_id, expected, block.last, *block.fields()]
        word: bytes = await self._script(keys=[STREAM, SHIPPED], args=arguments)
        return AppendOutcome(word.decode())

    async def last_shipped(self, log_ids: list[str]) -> dict[str, int | None]:
        """Return each log's last appended sequence number, or `None` if nothing was appended."""
        if not log_ids:
            return {}
        values: list[Any] = await self._redis.hmget(SHIPPED, log_ids)
        return {i: None if v is None else int(v) for i, v in zip(log_ids, values, strict=True)}

    async def delete_log(self, log_id: str) -> None:
        """Delete the stored position of a log, after the ledger has committed the whole log."""
        await self._redis.hdel(SHIPPED, log_id)

    async def trim(self) -> TrimCounts:
        """Delete the blocks that every group has acknowledged.

        If the stream is then still half full or more, delete all blocks that billing has
        acknowledged.
        """
        done, lagging = await self._acknowledged()
        if BILLING not in done:
            left = await self._redis.xlen(STREAM)
            return TrimCounts(left=left, dropped=0, lagging=lagging)
        await self._delete_before(min(done.values()))
        left = await self._redis.xlen(STREAM)
        if left < self._max_blocks // 2:
            return TrimCounts(left=left, dropped=0, lagging=lagging)
        dropped = await self._delete_before(done[BILLING])
        return TrimCounts(left=left - dropped, dropped=dropped, lagging=lagging)

    async def _acknowledged(self) -> tuple[dict[str, tuple[int, int]], dict[str, int]]:
        """Return each group's position and its lag.

        A group has acknowledged all blocks before its position. The lag is the number of blocks
        that the group has not acknowledged. After a restart or failover, Redis 7.0 may lose its own
        field `lag`, or count deleted blocks. The result is then an upper bound.
        """
        # This is read first, so that blocks that a group gets meanwhile only reduce its lag.
        length, last = await self._end(keys=[STREAM])
        try:
            groups = await self._redis.xinfo_groups(STREAM)
        except ResponseError as error:
            if "no such key" in str(error):
                return {}, {}
            raise
        done: dict[str, tuple[int, int]] = {}
        lagging: dict[str, int] = {}
        for group in groups:
            # In this order, a delivery between the two calls can only lower the result.
            delivered = _number(group["last-delivered-id"])
            pending = await self._redis.xpending(STREAM, group["name"])
            following = (delivered[0], delivered[1] + 1)
            oldest = _number(pending["min"]) if pending["pending"] else following
            name = group["name"].decode()
            done[name] = oldest
            lag = group.get("lag")
            if delivered >= _number(last):
                lag = 0
            elif lag is None:
                lag = length
            lagging[name] = min(lag + pending["pending"], length)
        return done, lagging

    async def _delete_before(self, place: tuple[int, int]) -> int:
        minimum = f"{place[0]}-{place[1]}"
        return int(await self._redis.xtrim(STREAM, minid=minimum, approximate=False))


def _number(entry_id: bytes) -> tuple[int, int]:
    time, _, sequence = entry_id.partition(b"-")
    return int(time), int(sequence)
