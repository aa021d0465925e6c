"""Sends items to backends and settles each, whatever the backends do."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from gateway.dispatch.budget import RetryBudget
from gateway.dispatch.hedging import Hedging
from gateway.dispatch.operation import DispatchContext, DispatchOperation, Settle
from gateway.dispatch.statistics import Counters, DispatchStatistics
from gateway.dispatch.tracing import CallTracer, NoTracing
from gateway.dispatch.work import Work
from gateway.routing.fleet import Fleet
from gateway.tasks import TaskScope
from gateway.types import Endpoint
from gateway.upstream.base import BackendClient


class Dispatcher:
    """Joins routing and upstream. An async context manager that owns the calls in flight.

    `reprobe` is told of endpoints whose state must be asked anew.
    """

    def __init__(
        self,
        *,
        fleet: Fleet,
        client: BackendClient,
        reprobe: Callable[[Endpoint], None],
        clock: Callable[[], float],
        tracer: CallTracer | None = None,
    ) -> None:
        self._tasks = TaskScope()
        self._counters = Counters()
        self.hedging = Hedging()
        """What is late, and what may be tried twice."""
        self._runs: set[DispatchOperation] = set()
        self._means = DispatchContext(
            fleet=fleet,
            client=client,
            reprobe=reprobe,
            tracer=tracer or NoTracing(),
            tasks=self._tasks,
            budget=RetryBudget(clock=clock),
            hedging=self.hedging,
            counters=self._counters,
            runs=self._runs,
        )
        fleet.on_lost(self._leave)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._tasks.__aexit__(kind, error, trace)
        # What ended settles its items in callbacks of this tick.
        await asyncio.sleep(0)

    async def run(
        self, work: Work, *, deadline: float, settle: Settle, traceparent: str = ""
    ) -> None:
        """Settle every item of `work` exactly once, each as soon as its outcome is known.

        Returns when all are settled, at the latest at `deadline` (of the event loop's clock); when
        cancelled, what is open is settled as a failure first. Trouble with backends is an outcome,
        never an exception.
        """
        if work.items:
            self.hedging.share = self._means.fleet.routing.hedge_share
            run = DispatchOperation(
                self._means, work, deadline=deadline, settle=settle, traceparent=traceparent
            )
            await run.finish()

    def _leave(self, endpoint: Endpoint) -> None:
        for run in tuple(self._runs):
            run.leave(endpoint)

    def statistics(self) -> DispatchStatistics:
        """Return counts since the start."""
        return self._counters.statistics()
