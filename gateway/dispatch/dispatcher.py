"""Sends items to backends and settles each, whatever the backends do."""

import asyncio
import copy
from collections.abc import Callable
from typing import Self

from gateway.dispatch.budget import RetryBudget
from gateway.dispatch.request_dispatch import DispatchContext, RequestDispatch
from gateway.dispatch.statistics import DispatchStatistics
from gateway.dispatch.tracing import CallTracer, NoTracing
from gateway.dispatch.work import Settle, Work
from gateway.routing.fleet import Fleet
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
    ) -> None:
        self._drain = drain
        self._context = DispatchContext(
            fleet=fleet,
            client=client,
            reprobe=reprobe,
            tracer=tracer or NoTracing(),
            budget=RetryBudget(clock=clock),
        )
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
        while self._context.in_progress and clock() < until:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_INTERVAL)
        self._is_closed = True
        for dispatch in tuple(self._context.in_progress):
            dispatch.cancel()

    def start(
        self, work: Work, *, deadline: float, settle: Settle, traceparent: str = ""
    ) -> RequestDispatch:
        """Settle every item of `work` exactly once, each as soon as its outcome is known.

        At the latest at `deadline` (of the event loop's clock), and when cancelled, what is open is
        settled as a failure. A failure of backends is an outcome, and so is one of ours.
        """
        self.hedging.share = self._context.fleet.routing.hedge_share
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
        """How many works have open items, or calls that go on."""
        return len(self._context.in_progress)

    def statistics(self) -> DispatchStatistics:
        """Return counts since the start."""
        return copy.deepcopy(self._context.counters)
