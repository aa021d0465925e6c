"""Bills usage: commits entries of a Redis stream to the ledger, the database of usage.

An entry is acknowledged after its commit.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Annotated, Final

import msgspec
from prometheus_client import CollectorRegistry
from redis.asyncio import Redis
from redis.exceptions import RedisError

from sluicegate.gateway.errors import DependencyUnavailable
from sluicegate.gateway.events.block import STREAM
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.redis.client import connect
from sluicegate.gateway.settings import Settings
from sluicegate.gateway.tasks import pause
from sluicegate.gateway.telemetry.instruments import NUMBER
from sluicegate.gateway.telemetry.metrics import GatewayMetrics
from sluicegate.gateway.workers.backoff import FAILURES, StoppableBackoff
from sluicegate.gateway.workers.budget_monitor import BudgetMonitor
from sluicegate.gateway.workers.group import GroupReader, StreamEntry, consumer_name
from sluicegate.gateway.workers.ledger_writer import LedgerWriter, WriteResult
from sluicegate.gateway.workers.stream import BILLING
from sluicegate.gateway.workers.usage_rollup import UsageRollup
from sluicegate.wire.metric_declaration import Aggregation, counter, gauge

_REDIS_TIMEOUT: Final = 5.0
_DRAIN: Final = 5.0
_BLOCKS: Final = 8
_log = logging.getLogger(__name__)


_EVENTS: Final = counter(
    "sluicegate_billed_events_total",
    "Events read from streams. `result`: `counted`, `duplicate`, `dead` (a dead letter), `lost`.",
    "result",
)
_LAG: Final = gauge(
    "sluicegate_billing_lag_seconds",
    "Age of the oldest event when the last blocks were committed. `stream` is the number of a "
    "region's stream.",
    "stream",
    over=Aggregation.MOST,
)


class BillingStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts the events that were billed since the start, and failures of Redis or the ledger."""

    events: Annotated[int, _EVENTS("counted")]
    duplicates: Annotated[int, _EVENTS("duplicate")]
    dead: Annotated[int, _EVENTS("dead")]
    lost: Annotated[int, _EVENTS("lost")]
    lag: Annotated[float, _LAG(NUMBER)]
    failures: Annotated[int, FAILURES]


class Billing:
    """Reads stream entries from `group`, and commits them to the ledger with `writer`.

    While Redis or the ledger is down, it retries. An entry that was committed but not acknowledged
    is delivered again, but its events are not recorded again. Several instances can run at the same
    time, in one process or in several.
    """

    def __init__(
        self,
        *,
        group: GroupReader,
        writer: LedgerWriter,
        wait: float = 0.5,
        report: Callable[[BillingStatistics], None] = lambda _: None,
    ) -> None:
        self._group = group
        self._writer = writer
        self._wait = wait
        self._report = report
        self._backoff = StoppableBackoff()
        self._lag = 0.0
        self._counts = dict.fromkeys(("events", "duplicates", "dead", "lost"), 0)

    async def run(self, stop: asyncio.Event) -> None:
        """Bill until `stop` is set.

        Then bill the entries that are left in the stream, for at most five seconds.
        """
        clock = asyncio.get_running_loop().time
        while not stop.is_set():
            await self._run_once(stop, self._wait)
        deadline = clock() + _DRAIN
        while clock() < deadline and await self._run_once(stop, 0.0):
            pass

    def statistics(self) -> BillingStatistics:
        """Return the counts so far."""
        return BillingStatistics(**self._counts, lag=self._lag, failures=self._backoff.failures)

    async def _run_once(self, stop: asyncio.Event, wait: float) -> bool:
        """Bill the next entries; return whether there may be more.

        After a failure, the result is true.
        """
        try:
            entries = await self._group.read(wait=wait)
            if entries:
                await self._bill(entries)
        except (RedisError, OSError, DependencyUnavailable) as error:
            if not self._backoff.failures:
                reason = type(error).__name__
                if isinstance(error, DependencyUnavailable):
                    reason = error.detail
                _log.warning(
                    "billing failed and is retried; events wait in the stream",
                    extra={"reason": reason},
                )
            await pause(stop, self._backoff.failed())
            # Once `stop` is set, the wait above ends immediately. This wait keeps the loop from
            # spinning.
            await asyncio.sleep(0.05 if stop.is_set() else 0)
            return True
        if self._backoff.succeeded():
            _log.info("billing has recovered")
        self._report(self.statistics())
        return bool(entries)

    async def _bill(self, entries: Sequence[StreamEntry]) -> None:
        try:
            result = await asyncio.to_thread(self._writer.write, entries)
        except DependencyUnavailable:
            # A smaller batch, because a slow ledger may time out on the same batch every time.
            self._group.reread_smaller()
            raise
        self._count(result)
        await self._group.acknowledge(entries)

    def _count(self, result: WriteResult) -> None:
        recorded = result.recorded
        self._counts["events"] += recorded.counted
        self._counts["duplicates"] += recorded.duplicates
        self._counts["dead"] += recorded.dead
        self._counts["lost"] += recorded.lost
        if result.oldest:
            self._lag = max(0.0, (time.time_ns() - result.oldest) / 1e9)


async def run_billing(settings: Settings, *, stop: asyncio.Event) -> None:
    """Bill the streams of all regions until `stop` is set.

    Each stream is billed independently of the others.
    """
    metrics = GatewayMetrics(CollectorRegistry())
    with Ledger(settings.ledger) as ledger:
        async with asyncio.TaskGroup() as group:
            for number, url in enumerate(settings.streams):
                part = f"billing_{number}" if number else "billing"
                redis = connect(
                    url, key=STREAM, timeout=_REDIS_TIMEOUT, keepalive=settings.tcp_keepalive
                )
                entries = GroupReader(
                    redis, group=BILLING, consumer=consumer_name(settings), count=_BLOCKS
                )
                billing = Billing(
                    group=entries,
                    writer=LedgerWriter(ledger),
                    report=partial(metrics.statistics, part),
                )
                group.create_task(_run_and_close(billing, redis, stop))
            rollup = UsageRollup(
                ledger.rollup,
                keep=settings.usage_events_keep,
                report=partial(metrics.statistics, "rollup"),
            )
            group.create_task(rollup.run(stop))
            watch = BudgetMonitor(ledger.budgets, report=partial(metrics.statistics, "budgets"))
            group.create_task(watch.run(stop))


async def _run_and_close(billing: Billing, redis: Redis, stop: asyncio.Event) -> None:
    async with aclosing(redis):
        await billing.run(stop)
