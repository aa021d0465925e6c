"""Writes a JSON line for each request to a file. Lines never contain input texts."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from functools import lru_cache, partial
from operator import attrgetter
from typing import Annotated, Any, Final

import msgspec
from prometheus_client import CollectorRegistry
from redis.exceptions import RedisError

from sluicegate.gateway.events.block import STREAM, MalformedBlock, Unpacker, from_fields
from sluicegate.gateway.events.hit_run import ids_of
from sluicegate.gateway.redis.client import connect
from sluicegate.gateway.settings import Settings
from sluicegate.gateway.tasks import pause
from sluicegate.gateway.telemetry.metrics import GatewayMetrics
from sluicegate.gateway.types import RequestEvent
from sluicegate.gateway.workers.backoff import FAILURES, StoppableBackoff
from sluicegate.gateway.workers.group import GroupReader, StreamEntry, consumer_name
from sluicegate.gateway.workers.rotating_file import RotatingFile
from sluicegate.gateway.workers.stream import EVENTS_DROPPED
from sluicegate.wire.metric_declaration import counter

GROUP: Final = "request-log"
_REDIS_TIMEOUT: Final = 5.0
_DRAIN: Final = 2.0
_REMEMBERED: Final = 64
"""How many written entries are remembered, in case an acknowledgement is lost and the entries are
delivered again. A read returns fewer entries than this number."""
_MAX_BYTES: Final = 64 * 1024 * 1024
_log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode
_fields: Final = [f for f in msgspec.structs.fields(RequestEvent) if f.name != "proxy_id"]
_count: Final = RequestEvent.__struct_fields__.index("count")
# A line has the fields of the event, in their order. Of the fields after `count`, it has only those
# that are set. `client_id` holds the `proxy_id`, too, because an event has at most one of them. The
# type is `Any`, because it follows from the event's type.
_Line: Any = msgspec.defstruct(
    "_Line",
    [
        *((field.name, Any) for field in _fields[:_count]),
        *((field.name, Any, field.default) for field in _fields[_count + 1 :]),
    ],
    omit_defaults=True,
)
_copied = attrgetter(*_Line.__struct_fields__[2:])


class RequestLogStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts the lines written, and the events dropped, since the start."""

    lines: Annotated[
        int, counter("sluicegate_request_log_lines_total", "Lines written to the request log.")
    ]
    dropped: Annotated[int, EVENTS_DROPPED("request_log")]
    failures: Annotated[int, FAILURES]


class RequestLog:
    """Reads events with `group`, and writes them to `file`.

    Events that cannot be written are dropped.
    """

    def __init__(
        self,
        *,
        group: GroupReader,
        file: RotatingFile,
        wait: float = 0.5,
        report: Callable[[RequestLogStatistics], None] = lambda _: None,
    ) -> None:
        self._group = group
        self._file = file
        self._wait = wait
        self._report = report
        self._unpacker = Unpacker()
        self._written: deque[bytes] = deque(maxlen=_REMEMBERED)
        self._backoff = StoppableBackoff()
        self._lines = 0
        self._dropped = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Write until `stop` is set.

        Then write the entries that are left in the stream, for at most two seconds.
        """
        clock = asyncio.get_running_loop().time
        while not stop.is_set():
            await self._run_once(stop, self._wait)
        deadline = clock() + _DRAIN
        while clock() < deadline and await self._run_once(stop, 0.0):
            pass

    def statistics(self) -> RequestLogStatistics:
        """Return the counts so far."""
        return RequestLogStatistics(
            lines=self._lines, dropped=self._dropped, failures=self._backoff.failures
        )

    async def _run_once(self, stop: asyncio.Event, wait: float) -> bool:
        """Write the next entries; return whether there were any."""
        try:
            entries = await self._group.read(wait=wait)
            if entries:
                await self._append(entries)
        except (RedisError, OSError) as error:
            if not self._backoff.failures:
                _log.warning(
                    "the request log cannot read from Redis and tries again",
                    extra={"reason": type(error).__name__},
                )
            await pause(stop, self._backoff.failed())
            return False
        self._backoff.succeeded()
        self._report(self.statistics())
        return bool(entries)

    async def _append(self, entries: Sequence[StreamEntry]) -> None:
        """Write those `entries` that were not written before, and acknowledge all `entries`."""
        new = [entry for entry in entries if entry.id not in self._written]
        if new:
            await asyncio.to_thread(self._write, new)
            self._written.extend(entry.id for entry in new)
        await self._group.acknowledge(entries)

    def _write(self, entries: Sequence[StreamEntry]) -> None:
        events = [event for entry in entries for event in self._events(entry)]
        count = sum(event.count for event in events)
        try:
            self._file.append(b"".join(map(request_lines, events)))
        except OSError as error:
            self._dropped += count
            _log.warning(
                "lines of the request log could not be written and are dropped; check the disk",
                extra={"reason": type(error).__name__},
            )
            return
        self._lines += count

    def _events(self, entry: StreamEntry) -> list[RequestEvent]:
        try:
            return self._unpacker.events(from_fields(entry.fields))
        except MalformedBlock:
            self._dropped += 1
            return []


@lru_cache(maxsize=16)
def _second(seconds: int) -> str:
    """Return a time in seconds since the epoch in the format of ISO 8601, without a time zone."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def request_lines(event: RequestEvent) -> bytes:
    """Return a JSON line for each request that `event` stands for."""
    seconds, rest = divmod(event.time, 1_000_000_000)
    micros = rest // 1_000
    line = _Line(
        event.id,
        f"{_second(seconds)}.{micros:06d}Z" if micros else f"{_second(seconds)}Z",
        *_copied(event),
    )
    if event.proxy_id:
        line.client_id = event.proxy_id
    if event.arms:
        line.arms = [msgspec.structs.asdict(usage) for usage in event.arms]
    text = _encode(line) + b"\n"
    if event.count == 1:
        return text
    start, _, end = text.partition(event.id.encode())
    return b"".join([start + id_.encode() + end for id_ in ids_of(event)])


async def run_request_log(settings: Settings, *, stop: asyncio.Event) -> None:
    """Write `requests.log` in the data directory until `stop` is set."""
    metrics = GatewayMetrics(CollectorRegistry())
    redis = connect(
        settings.state_url, key=STREAM, timeout=_REDIS_TIMEOUT, keepalive=settings.tcp_keepalive
    )
    path = settings.data_dir / "requests.log"
    async with aclosing(redis):
        await RequestLog(
            group=GroupReader(redis, group=GROUP, consumer=consumer_name(settings), count=8),
            file=RotatingFile(path, max_bytes=_MAX_BYTES, keep=4),
            report=partial(metrics.statistics, "request_log"),
        ).run(stop)
