"""Ships event logs from the disk to the event stream in Redis.

A log consists of segments (files). They are deleted after the ledger has committed their events.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import aclosing, closing
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import msgspec
from prometheus_client import CollectorRegistry
from redis.exceptions import RedisError

from sluicegate.gateway.events.block import STREAM, gap, pack
from sluicegate.gateway.events.reader import UnreadableLog, list_logs
from sluicegate.gateway.ledger.recording import EventRecorder
from sluicegate.gateway.ledger.store import Store
from sluicegate.gateway.redis.client import connect
from sluicegate.gateway.settings import Settings
from sluicegate.gateway.tasks import pause
from sluicegate.gateway.telemetry.metrics import GatewayMetrics
from sluicegate.gateway.workers.backoff import FAILURES, StoppableBackoff
from sluicegate.gateway.workers.file_lock import FileLock
from sluicegate.gateway.workers.ledger_marks import LedgerMarks
from sluicegate.gateway.workers.retention import RetainedLog, SegmentRetention
from sluicegate.gateway.workers.stream import EVENTS_DROPPED, AppendOutcome, EventStream
from sluicegate.wire.metric_declaration import Aggregation, counter, gauge

LOCK_NAME: Final = "shipper.lock"
_REDIS_TIMEOUT: Final = 5.0
_DRAIN: Final = 5.0
_CHECK_EVERY: Final = 2
"""The logs are compared with the stream at every other poll."""
_log = logging.getLogger(__name__)

_LAGGING: Final = gauge(
    "sluicegate_stream_lag_events",
    "Estimated events in the stream that a `consumer` (`billing`, `request_log`) has not "
    "acknowledged.",
    "consumer",
)
_LOGS: Final = gauge("sluicegate_shipper_logs", "Event logs that the shipper reads.")
_EVENTS: Final = counter("sluicegate_shipped_events_total", "Usage events added to the stream.")
_BLOCKS: Final = counter(
    "sluicegate_shipped_blocks_total", "Blocks of usage events added to the stream."
)
_REWINDS: Final = counter(
    "sluicegate_shipper_rewinds_total",
    "How often a log was shipped again because the stream or the ledger had lost events.",
)
_DROPPED: Final = counter(
    "sluicegate_stream_dropped_blocks_total", "Blocks deleted before the request log read them."
)
_UNREADABLE: Final = gauge(
    "sluicegate_shipper_unreadable_logs", "Files that cannot be read as event logs."
)
_SEGMENTS_DELETED: Final = counter(
    "sluicegate_event_log_deleted_segments_total", "Deleted segments that had been shipped."
)
_SEGMENTS_KEPT: Final = gauge(
    "sluicegate_event_log_kept_segments", "Shipped segments kept in case the ledger is lost."
)
_KEPT_BYTES: Final = gauge("sluicegate_event_log_kept_bytes", "Bytes of the kept segments.")
_UNCONSUMED: Final = gauge(
    "sluicegate_stream_blocks", "Blocks in the stream that a consumer has not acknowledged."
)
_FULL: Final = gauge(
    "sluicegate_stream_full",
    "Whether the stream is full and accepts no more blocks.",
    over=Aggregation.MOST,
)
_LAG: Final = gauge(
    "sluicegate_shipper_lag_seconds",
    "Age of the oldest events that are not in the stream; 0 if all are.",
    over=Aggregation.MOST,
)
_UNSHIPPED_BYTES: Final = gauge(
    "sluicegate_events_unshipped_bytes", "Bytes of event logs that are not yet in the stream."
)


class ShipperStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts the events shipped since the start, and describes the stream and the logs.

    `lagging` is an estimate from the average size of a block (a group of events).
    """

    logs: Annotated[int, _LOGS]
    events: Annotated[int, _EVENTS]
    blocks: Annotated[int, _BLOCKS]
    rewinds: Annotated[int, _REWINDS]
    lost: Annotated[int, EVENTS_DROPPED("usage")]
    dropped: Annotated[int, _DROPPED]
    unreadable: Annotated[int, _UNREADABLE]
    segments_deleted: Annotated[int, _SEGMENTS_DELETED]
    segments_kept: Annotated[int, _SEGMENTS_KEPT]
    kept_bytes: Annotated[int, _KEPT_BYTES]
    unconsumed: Annotated[int, _UNCONSUMED]
    full: Annotated[bool, _FULL]
    failures: Annotated[int, FAILURES]
    lagging: Annotated[dict[str, int], _LAGGING] = {}
    lag: Annotated[float, _LAG] = 0.0
    unshipped_bytes: Annotated[int, _UNSHIPPED_BYTES] = 0


class _ShippedLog(RetainedLog):
    """Tracks a log. `shipped` is the last sequence number of the log in the stream."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.shipped: int | None = None
        self.is_positioned = False
        self.waits_since: float | None = None
        """When the log was first found to have unshipped events."""


class Shipper:
    """Ships all logs in `directory`, including the logs of writers that have died.

    Only one process at a time ships the logs of a directory. While Redis is down or the stream is
    full, events wait on disk. While the ledger is down or does not respond, nothing is deleted, but
    shipping continues.

    At every other poll, the shipper compares the logs with the stream. If Redis has lost events,
    the shipper ships all events again that the ledger has not committed. If the ledger was restored
    from a backup, the shipper ships the events again that the ledger lacks. This works only for
    events that `retention` has kept.
    """

    def __init__(
        self,
        directory: Path,
        *,
        stream: EventStream,
        marks: LedgerMarks,
        retention: SegmentRetention,
        block_events: int = 1000,
        poll: float = 1.0,
        report: Callable[[ShipperStatistics], None] = lambda _: None,
    ) -> None:
        self._directory = directory
        self._stream = stream
        self._marks = marks
        self._retention = retention
        self._block_events = block_events
        self._poll = poll
        self._report = report
        self._logs: dict[str, _ShippedLog] = {}
        self._unreadable: set[str] = set()
        self._unreachable: set[str] = set()
        self._backoff = StoppableBackoff()
        self._check_at = 0.0
        self._counts = dict.fromkeys(("events", "blocks", "rewinds", "lost", "dropped"), 0)
        self._unconsumed = 0
        self._lagging: dict[str, int] = {}
        self._full = False
        self._busy = False

    async def run(self, stop: asyncio.Event) -> None:
        """Ship until `stop` is set. Then ship the remaining events, for at most five seconds."""
        clock = asyncio.get_running_loop().time
        while not stop.is_set():
            await pause(stop, await self.run_once())
        deadline = clock() + _DRAIN
        while clock() < deadline:
            await asyncio.sleep(min(await self.run_once(), self._poll))
            if not (self._busy or self._full or self._backoff.failures):
                return

    async def run_once(self) -> float:
        """Ship one block of each log that has events; return the seconds until the next call."""
        clock = asyncio.get_running_loop().time
        before = self._counts["blocks"]
        try:
            # Done first, so that the statistics include the logs even while Redis is down.
            self._discover()
            if clock() >= self._check_at:
                await self._check()
                self._check_at = clock() + _CHECK_EVERY * self._poll
            self._busy = any([await self._ship(log) for log in list(self._logs.values())])
        except (RedisError, OSError) as error:
            # Each log keeps its position, so the next call continues there.
            if not self._backoff.failures:
                _log.warning(
                    "shipping failed and is retried; events wait on disk",
                    extra={"reason": type(error).__name__},
                )
            self._report(self.statistics())
            return self._backoff.failed()
        if self._backoff.succeeded():
            _log.info("shipping has recovered")
        if self._full:
            return self._poll * _CHECK_EVERY
        # A log counts as busy if its position is wrong. This may happen repeatedly, and the loop
        # must not spin.
        return 0.0 if self._busy and self._counts["blocks"] > before else self._poll

    def statistics(self) -> ShipperStatistics:
        """Return the counts so far."""
        kept, waiting = self._retention.statistics(), self._waiting()
        return ShipperStatistics(
            logs=len(self._logs),
            **self._counts,
            unreadable=len(self._unreadable),
            segments_deleted=kept.deleted,
            segments_kept=kept.segments,
            kept_bytes=kept.size_bytes,
            unconsumed=self._unconsumed,
            full=self._full,
            failures=self._backoff.failures,
            lagging=self._lagging,
            unshipped_bytes=sum(waiting.values()),
            lag=max(waiting, default=0.0),
        )

    def _waiting(self) -> dict[float, int]:
        """Return the unshipped bytes of all logs, by the seconds for which the logs have waited."""
        now = time.monotonic()
        found: dict[float, int] = {}
        for log in self._logs.values():
            left = self._unshipped_bytes(log)
            if left == 0:
                log.waits_since = None
                continue
            if log.waits_since is None:
                log.waits_since = now
            waited = now - log.waits_since
            found[waited] = found.get(waited, 0) + (left or 0)
        return found

    def _unshipped_bytes(self, log: _ShippedLog) -> int | None:
        """Estimate how many bytes of a log are unshipped; `None` if the log is unreadable."""
        reader = log.reader
        try:
            if not log.is_positioned:
                # What the stream has is unknown, so only events in the ledger count as shipped.
                reader.seek(max(log.mark.value, reader.deleted_up_to()))
                if reader.read(self._block_events) is None:
                    return 0
            return reader.unread_bytes()
        except OSError:
            return None

    def _discover(self) -> None:
        for path in list_logs(self._directory):
            if path.name in self._logs or path.name in self._unreadable:
                continue
            try:
                self._logs[path.name] = _ShippedLog(path)
            except UnreadableLog as error:
                self._unreadable.add(path.name)
                _log.error(
                    "an event log has an unknown format and is not shipped",
                    extra={"reason": str(error)},
                )
            except OSError as error:  # for example, a missing permission that may be granted later
                if path.name not in self._unreachable:
                    self._unreachable.add(path.name)
                    _log.error(
                        "an event log cannot be read; check its permissions",
                        extra={"reason": str(error)},
                    )

    async def _ship(self, log: _ShippedLog) -> bool:
        """Ship the next block of a log; return whether another block is ready to be shipped."""
        if not log.is_positioned:
            await self._set_position(log)
        reader = log.reader
        batch = reader.read(self._block_events)
        end = reader.destroyed_up_to() if batch is None else batch.first - 1
        missing = max(0, end - reader.sequence)
        if missing:
            block = gap(reader.id, reader.sequence + 1, end)
        elif batch is not None:
            block = pack(reader.id, batch.first, batch.payloads)
        else:
            return False
        outcome = await self._stream.ship(block, after=log.shipped)
        self._full = outcome is AppendOutcome.FULL
        if self._full:
            self._check_at = 0.0
            return False
        if outcome is AppendOutcome.MOVED:
            log.is_positioned = False
            return True
        log.shipped = block.last
        has_more = batch is not None and batch.more
        if not has_more:
            # Events beyond this block were written after the read.
            log.waits_since = None
        if batch is None or missing:
            reader.sequence = block.last
        else:
            reader.accept(batch)
        self._counts["blocks"] += 1
        self._counts["lost" if missing else "events"] += block.size
        return missing > 0 or has_more

    async def _set_position(self, log: _ShippedLog) -> None:
        """Move the reader to the first record that is neither in the stream nor in the ledger."""
        log_id = log.reader.id
        log.shipped = (await self._stream.last_shipped([log_id]))[log_id]
        marks = await self._marks.read([log_id])
        # While the ledger is down, the last mark that is known applies.
        mark = marks.get(log_id, max(log.mark.value, log.reader.deleted_up_to()))
        is_behind = mark < log.mark.value
        log.reader.seek(mark if is_behind else max(log.shipped or 0, mark))
        if is_behind:
            self._note_rewind("the ledger was restored and lacks events")
            log.mark.set(mark)
        log.is_positioned = True

    async def _check(self) -> None:
        """Trim the stream, delete committed segments, and rewind logs whose events were lost."""
        trimmed = await self._stream.trim()
        self._unconsumed = trimmed.left
        events = self._counts["events"] / max(1, self._counts["blocks"])
        self._lagging = {
            name.replace("-", "_"): round(blocks * max(1.0, events))
            for name, blocks in trimmed.lagging.items()
        }
        self._full = False
        self._counts["dropped"] += trimmed.dropped
        logs = {log_id: log for log_id, log in self._logs.items() if log.is_positioned}
        shipped = await self._stream.last_shipped(list(logs))
        # The marks are read after the stream. If the stream is empty, they therefore cover all
        # shipped events.
        marks = await self._marks.read(list(logs))
        for log_id, mark in marks.items():
            self._compare(logs[log_id], mark, shipped[log_id], is_empty=trimmed.left == 0)
        self._retention.expire(logs.values())
        for log_id, mark in marks.items():
            log = logs[log_id]
            reader = log.reader
            # If a log has no records, no events can be missing in a restored ledger.
            is_empty = reader.sequence == 0 or reader.is_empty
            is_whole = reader.destroyed_up_to() <= reader.sequence
            if reader.ended and reader.sequence <= mark and is_empty and is_whole:
                await self._remove(log)
        self._report(self.statistics())

    def _compare(self, log: _ShippedLog, mark: int, shipped: int | None, *, is_empty: bool) -> None:
        """Rewind a log to the ledger's mark if the ledger or the stream has lost events."""
        if mark < log.mark.value:
            self._rewind(log, mark, shipped, "the ledger was restored and lacks events")
        elif log.reader.sequence > mark and (is_empty or shipped != log.shipped):
            self._rewind(log, mark, shipped, "the stream has lost events")
        self._retention.record_commit(log, mark)

    def _rewind(self, log: _ShippedLog, mark: int, shipped: int | None, reason: str) -> None:
        self._note_rewind(reason)
        log.shipped = shipped
        log.reader.seek(mark)

    def _note_rewind(self, reason: str) -> None:
        _log.warning("events are shipped again", extra={"reason": reason})
        self._counts["rewinds"] += 1

    async def _remove(self, log: _ShippedLog) -> None:
        log.reader.remove()
        del self._logs[log.reader.id]
        await self._stream.delete_log(log.reader.id)


async def run_shipper(settings: Settings, *, stop: asyncio.Event) -> None:
    """Ship the data directory's logs until `stop` is set. Wait while another process ships them."""
    metrics = GatewayMetrics(CollectorRegistry())
    redis = connect(
        settings.state_url, key=STREAM, timeout=_REDIS_TIMEOUT, keepalive=settings.tcp_keepalive
    )
    async with aclosing(redis):
        # Only the store is opened, because opening the whole ledger would prolong the start by a
        # sixth.
        with (
            FileLock(settings.data_dir / LOCK_NAME) as lock,
            closing(Store(settings.ledger, clock=time.time_ns)) as store,
        ):
            while not lock.take() and not stop.is_set():
                await pause(stop, 0.5)
            if lock.held:
                await Shipper(
                    settings.events_dir,
                    stream=EventStream(redis, max_blocks=1000),
                    marks=LedgerMarks(EventRecorder(store).high_water),
                    retention=SegmentRetention(
                        settings.events_dir,
                        keep=settings.events_keep,
                        keep_bytes=settings.events_keep_bytes,
                    ),
                    poll=settings.events_interval,
                    report=partial(metrics.statistics, "shipper"),
                ).run(stop)
