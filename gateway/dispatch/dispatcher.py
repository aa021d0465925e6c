"""Sends items to backends and settles each, whatever the backends do."""

import copy
from collections.abc import Callable, Coroutine
from typing import Any, Self

from gateway.dispatch import failures
from gateway.dispatch.budget import RetryBudget
from gateway.dispatch.request_dispatch import DispatchContext, RequestDispatch
from gateway.dispatch.statistics import DispatchStatistics
from gateway.dispatch.tracing import CallTracer, NoTracing
from gateway.dispatch.work import Settle, Work
from gateway.routing.fleet import Fleet
from gateway.types import Endpoint
from gateway.upstream.base import BackendClient


class Dispatcher:
    """Implements `WorkRunner` over the fleet and the backend client.

    An async context manager that owns the calls in flight. `reprobe` is called with endpoints whose
    state may have changed.
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
        self._context = DispatchContext(
            fleet=fleet,
            client=client,
            reprobe=reprobe,
            tracer=tracer or NoTracing(),
            budget=RetryBudget(clock=clock),
        )
        self.hedging = self._context.hedging
        fleet.on_lost(self._endpoint_lost)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        for dispatch in tuple(self._context.in_progress):
            dispatch.give_up(failures.CANCELLED)

    def run(
        self, work: Work, *, deadline: float, settle: Settle, traceparent: str = ""
    ) -> Coroutine[Any, Any, None]:
        """Settle every item of `work` exactly once, each as soon as its outcome is known.

        Returns when all are settled, at the latest at `deadline` (of the event loop's clock); when
        cancelled, what is open is settled as a failure first. A failure of backends is an outcome,
        never an exception.
        """
        self.hedging.share = self._context.fleet.routing.hedge_share
        return RequestDispatch(
            self._context, work, deadline=deadline, settle=settle, traceparent=traceparent
        ).finish()

    def _endpoint_lost(self, endpoint: Endpoint) -> None:
        for dispatch in tuple(self._context.in_progress):
            dispatch.endpoint_lost(endpoint)

    def statistics(self) -> DispatchStatistics:
        """Return counts since the start."""
        return copy.deepcopy(self._context.counters)
