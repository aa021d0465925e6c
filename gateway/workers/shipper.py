"""Carries event logs into the stream, and has them deleted a while after the ledger has them."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import msgspec
from prometheus_client import CollectorRegistry
from redis.exceptions import RedisError

from gateway.errors import DependencyUnavailable
from gateway.events.block import gap, pack
from gateway.events.committed import CommittedMark
from gateway.events.reader import LogReader, UnreadableLog, list_logs
from gateway.ledger.ledger import Ledger
from gateway.redis.client import connect
from gateway.settings import Settings
from gateway.telemetry.metrics import GatewayMetrics
from gateway.workers.backoff import StoppableBackoff, pause
from gateway.workers.file_lock import FileLock
from gateway.workers.retention import RetainedLog, SegmentRetention
from gateway.workers.stream import AppendOutcome, EventStream

LOCK_NAME: Final = "shipper.lock"
_REDIS_TIMEOUT: Final = 5.0
_log = logging.getLogger(__name__)


class Marks(Protocol):
    """Knows up to where logs are committed; blocks, and raises `DependencyUnavailable`."""

    def high_water(self, log_ids: Iterable[str]) -> dict[str, int]:
        """Return the mark per log; 0 is nothing."""
        ...


class ShipperStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What was shipped since the start, and how it stands.

    `unconsumed` are blocks in the stream; `full` says that no more are added. `lost` events were
    destroyed by a crash of the machine; `dropped` blocks were not seen by the request log.
    """

    logs: int
    events: int
    blocks: int
    rewinds: int
    lost: int
    dropped: int
    unreadable: int
    segments_deleted: int
    segments_kept: int
    kept_bytes: int
    unconsumed: int
    full: bool
    failures: int


class _Tail:
    """A log that is being shipped; `known` is its last sequence number in the stream."""

    def __init__(self, path: Path) -> None:
        self.reader = LogReader(path)
        self.mark = CommittedMark(path)
        self.known: int | None = None
        self.placed = False


class Shipper:
    """Ships every log in `directory`, also those of dead writers. Call it from one process.

    Redis down or full, or a consumer that is dead: the logs wait on the disk. Ledger down, or
    without an answer in `ledger_timeout` seconds: nothing is deleted, and shipping goes on. Every
    second the stream is compared with what should be in it, and what Redis lost is shipped again
    from the ledger's mark; so is what a ledger lacks that was restored from a backup, as far as
    `retention` has kept it.
    """

    def __init__(
        self,
        directory: Path,
        *,
        stream: EventStream,
        marks: Marks,
        retention: SegmentRetention | None = None,
        block_events: int = 1000,
        poll: float = 0.25,
        check_every: float = 1.0,
        drain: float = 5.0,
        ledger_timeout: float = 1.0,
        report: Callable[[Mapping[str, float]], None] = lambda _: None,
    ) -> None:
        self._directory = directory
        self._stream = stream
        self._marks = marks
        self._retention = retention or SegmentRetention(directory)
        self._block_events = block_events
        self._poll = poll
        self._check_every = check_every
        self._drain = drain
        self._ledger_timeout = ledger_timeout
        self._question: asyncio.Future[dict[str, int]] | None = None
        """What the ledger was asked last."""
        self._report = report
        self._tails: dict[str, _Tail] = {}
        self._unreadable: set[str] = set()
        self._troubled: set[str] = set()
        self._backoff = StoppableBackoff()
        self._check_at = 0.0
        self._counts = dict.fromkeys(("events", "blocks", "rewinds", "lost", "dropped"), 0)
        self._unconsumed = 0
        self._full = False
        self._busy = False

    async def run(self, stop: asyncio.Event) -> None:
        """Ship until `stop`, then what is there within the drain time."""
        clock = asyncio.get_running_loop().time
        while not stop.is_set():
            await pause(stop, await self.turn())
        deadline = clock() + self._drain
        while clock() < deadline:
            await asyncio.sleep(min(await self.turn(), self._poll))
            if not (self._busy or self._full or self._backoff.failures):
                return

    async def turn(self) -> float:
        """Ship a block of each log that has one; return the seconds to wait before the next."""
        clock = asyncio.get_running_loop().time
        before = self._counts["blocks"]
        try:
            if clock() >= self._check_at:
                await self._check()
                self._check_at = clock() + self._check_every
            self._discover()
            self._busy = any([await self._ship(tail) for tail in list(self._tails.values())])
        except (RedisError, OSError) as error:
            # A log's own place is kept: the next turn begins where this one ended.
            if not self._backoff.failures:
                _log.warning("events wait on the disk", extra={"reason": type(error).__name__})
            return self._backoff.failed()
        if self._backoff.succeeded():
            _log.info("shipping goes on")
        if self._full:
            return self._poll * 5
        # A log that is found elsewhere again and again is busy, too, and must not make this spin.
        return 0.0 if self._busy and self._counts["blocks"] > before else self._poll

    def statistics(self) -> ShipperStatistics:
        """Return the counts so far."""
        kept = self._retention.statistics()
        return ShipperStatistics(
            logs=len(self._tails),
            **self._counts,
            unreadable=len(self._unreadable),
            segments_deleted=kept.deleted,
            segments_kept=kept.segments,
            kept_bytes=kept.size_bytes,
            unconsumed=self._unconsumed,
            full=self._full,
            failures=self._backoff.failures,
        )

    def _discover(self) -> None:
        for path in list_logs(self._directory):
            if path.name in self._tails or path.name in self._unreadable:
                continue
            try:
                self._tails[path.name] = _Tail(path)
            except UnreadableLog as error:
                self._unreadable.add(path.name)
                _log.error("a log is left alone", extra={"reason": str(error)})
            except OSError as error:  # such as another user's; it may be readable later
                if path.name not in self._troubled:
                    self._troubled.add(path.name)
                    _log.error("a log cannot be read yet", extra={"reason": str(error)})

    async def _ship(self, tail: _Tail) -> bool:
        """Ship the next block; return whether there may be more at once."""
        if not tail.placed:
            await self._place(tail)
        reader = tail.reader
        run = reader.read(self._block_events)
        if run is None:
            return False
        missing = run.first - reader.sequence - 1
        if missing:
            block = gap(reader.id, reader.sequence + 1, run.first - 1)
        else:
            block = pack(reader.id, run.first, run.payloads)
        reply = await self._stream.ship(block, known=tail.known)
        self._full = reply.outcome is AppendOutcome.FULL
        if reply.outcome is AppendOutcome.MOVED:
            tail.placed = False
        if self._full:
            self._check_at = 0.0
        if reply.outcome is not AppendOutcome.SHIPPED:
            return reply.outcome is AppendOutcome.MOVED
        tail.known = block.last
        if missing:
            reader.sequence = block.last
        else:
            reader.accept(run)
        self._counts["blocks"] += 1
        self._counts["lost" if missing else "events"] += block.size
        return missing > 0 or run.more

    async def _place(self, tail: _Tail) -> None:
        """Go to the first record that is neither in the stream nor in the ledger."""
        log_id = tail.reader.id
        tail.known = (await self._stream.known([log_id]))[log_id]
        marks = await self._committed([log_id])
        # Without the ledger, what it had when it was last seen need not be shipped again.
        mark = marks.get(log_id, max(tail.mark.value, tail.reader.deleted()))
        behind = mark < tail.mark.value
        tail.reader.seek(mark if behind else max(tail.known or 0, mark))
        if behind:
            self._note_rewind("the ledger has gone back: it lacks events that it had")
            tail.mark.move(mark)
        tail.placed = True

    async def _check(self) -> None:
        """Trim the stream, delete what is committed, find what Redis has forgotten."""
        trimmed = await self._stream.trim()
        self._unconsumed = trimmed.left
        self._full = False
        self._counts["dropped"] += trimmed.dropped
        tails = {log_id: tail for log_id, tail in self._tails.items() if tail.placed}
        known = await self._stream.known(list(tails))
        # Asked after the stream: an empty stream means that the marks have everything.
        marks = await self._committed(list(tails))
        for log_id, mark in marks.items():
            self._compare(tails[log_id], mark, known[log_id], is_empty=trimmed.left == 0)
        self._retention.expire([RetainedLog(t.reader, t.mark) for t in tails.values()])
        for log_id, mark in marks.items():
            tail = tails[log_id]
            reader = tail.reader
            # One that was never written to holds nothing that a restored ledger could lack.
            is_empty = reader.sequence == 0 or reader.is_empty
            if reader.ended and reader.sequence <= mark and is_empty:
                await self._remove(tail)
        self._report({k: float(v) for k, v in msgspec.structs.asdict(self.statistics()).items()})

    def _compare(self, tail: _Tail, mark: int, known: int | None, *, is_empty: bool) -> None:
        """Ship again from the ledger's mark on what the ledger or the stream has lost."""
        if mark < tail.mark.value:
            self._rewind(tail, mark, known, "the ledger has gone back: it lacks events that it had")
        elif tail.reader.sequence > mark and (is_empty or known != tail.known):
            self._rewind(tail, mark, known, "the stream has lost events")
        self._retention.committed(RetainedLog(tail.reader, tail.mark), mark)

    def _rewind(self, tail: _Tail, mark: int, known: int | None, reason: str) -> None:
        self._note_rewind(reason)
        tail.known = known
        tail.reader.seek(mark)

    def _note_rewind(self, reason: str) -> None:
        _log.warning("events are shipped again", extra={"reason": reason})
        self._counts["rewinds"] += 1

    async def _remove(self, tail: _Tail) -> None:
        tail.reader.remove()
        del self._tails[tail.reader.id]
        await self._stream.forget(tail.reader.id)

    async def _committed(self, log_ids: list[str]) -> dict[str, int]:
        """Return the ledger's marks, none while it cannot be reached, or does not answer soon.

        An answer that comes later counts for nothing: the stream has changed since.
        """
        if not log_ids or (self._question is not None and not self._question.done()):
            return {}
        ask = partial(self._marks.high_water, log_ids)
        question = self._question = asyncio.get_running_loop().run_in_executor(None, ask)
        await asyncio.wait([question], timeout=self._ledger_timeout)
        if not question.done():
            question.add_done_callback(_forget)
            return {}
        try:
            return question.result()
        except DependencyUnavailable:
            return {}


def _forget(question: asyncio.Future[dict[str, int]]) -> None:
    """Look at what came of a question, as nobody else does."""
    if not question.cancelled():
        question.exception()


async def run_shipper(settings: Settings, *, stop: asyncio.Event) -> None:
    """Ship the logs of the data directory until `stop`; waits while another process does."""
    metrics = GatewayMetrics(CollectorRegistry())
    redis = connect(settings.state_url, timeout=_REDIS_TIMEOUT, keepalive=settings.tcp_keepalive)
    try:
        with FileLock(settings.data_dir / LOCK_NAME) as lock, Ledger(settings.ledger) as ledger:
            while not lock.take() and not stop.is_set():
                await pause(stop, 0.5)
            if lock.held:
                await Shipper(
                    settings.events_dir,
                    stream=EventStream(redis, max_blocks=1000),
                    marks=ledger,
                    retention=SegmentRetention(
                        settings.events_dir,
                        keep=settings.events_keep,
                        keep_bytes=settings.events_keep_bytes,
                    ),
                    report=lambda figures: metrics.statistics("shipper", figures),
                ).run(stop)
    finally:
        await redis.aclose()
