"""Sends items to backends and settles each, whatever the backends do."""

import asyncio
import copy
from collections.abc import Callable
from typing import Self

from gateway.dispatch.budget import RetryBudget
from gateway.dispatch.endpoint_counts import CallStatistics
from gateway.dispatch.gathering import Gatherer
from gateway.dispatch.overload import OverloadCauses
from gateway.dispatch.request_dispatch import DispatchContext, RequestDispatch
from gateway.dispatch.statistics import DispatchStatistics
from gateway.dispatch.tracing import CallTracer, NoTracing
from gateway.dispatch.work import Settle, StartedWork, Work
from gateway.routing.fleet import Fleet
from gateway.tasks import CallbackBatch
from gateway.telemetry.phases import PhaseDurations
from gateway.types import Endpoint
from gateway.upstream.base import BackendClient

_POLL_INTERVAL = 0.01


class Dispatcher:
    """Implements `WorkRunner` over the fleet and the backend client.

    An async context manager that owns the calls in flight: at its exit work has `drain` seconds.
    `reprobe` is called with endpoints whose state may have changed.
    """

    def __init__(
        self,
        *,
        fleet: Fleet,
        client: BackendClient,
        reprobe: Callable[[Endpoint], None],
        clock: Callable[[], float],
        tracer: CallTracer | None = None,
        drain: float = 0.0,
        phases: PhaseDurations | None = None,
    ) -> None:
        self._drain = drain
        self._context = DispatchContext(
            fleet=fleet,
            client=client,
            reprobe=reprobe,
            tracer=tracer or NoTracing(),
            budget=RetryBudget(clock=clock),
            overload=OverloadCauses(fleet),
            phases=phases or PhaseDurations(),
        )
        self._records = self._context.tracer.records
        self.batch = CallbackBatch()
        """Works that begin within it are gathered until its end."""
        self._gatherer = Gatherer(self._context, self.batch)
        self.hedging = self._context.hedging
        self._is_closed = False
        fleet.on_lost(self._endpoint_lost)

    async def __aenter__(self) -> Self:
        self._is_closed = False
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        clock = asyncio.get_running_loop().time
        until = clock() + self._drain
        # A callback for the last of them would cost every request.
        while self.in_progress and clock() < until:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_INTERVAL)
        self._is_closed = True
        self._gatherer.start()
        for dispatch in tuple(self._context.in_progress):
            dispatch.cancel()

    def start(
        self, work: Work, *, deadline: float, settle: Settle, traceparent: str = ""
    ) -> StartedWork:
        """Settle every item of `work` exactly once, each as soon as its outcome is known.

        At the latest at `deadline` (of the event loop's clock), and when cancelled, what is open is
        settled as a failure. A failure of backends is an outcome, and so is one of ours.
        """
        self.hedging.share = self._context.fleet.routing.hedge_share
        may_be_gathered = work.is_gathered or len(work.items) == 1
        if may_be_gathered and not (self._is_closed or self._records(traceparent)):
            return self._gatherer.add(
                work, deadline=deadline, settle=settle, traceparent=traceparent
            )
        dispatch = RequestDispatch(
            self._context, work, deadline=deadline, settle=settle, traceparent=traceparent
        )
        if self._is_closed:  # who waited for what was cancelled asks again
            dispatch.cancel()
        else:
            dispatch.start()
        return dispatch

    def _endpoint_lost(self, endpoint: Endpoint) -> None:
        for dispatch in tuple(self._context.in_progress):
            dispatch.endpoint_lost(endpoint)

    @property
    def in_progress(self) -> int:
        """How many works have open items, or calls that go on; those gathered count as one."""
        return len(self._context.in_progress) + len(self._gatherer)

    def statistics(self) -> DispatchStatistics:
        """Return counts since the start."""
        return copy.deepcopy(self._context.counters)

    def endpoint_statistics(self) -> CallStatistics:
        """Return counts by endpoint and region since the start; they are not copied."""
        return self._context.endpoints.statistics()
