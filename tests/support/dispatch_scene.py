"""Builds a dispatcher over scripted backends."""

import asyncio
from collections.abc import AsyncIterator, Callable
from random import Random

from sluicegate.gateway.config.document import RoutingConfig
from sluicegate.gateway.dispatch.dispatcher import Dispatcher
from sluicegate.gateway.routing.fleet import Fleet
from sluicegate.gateway.telemetry.tracing import Tracer
from sluicegate.gateway.types import Endpoint, ServedModel
from sluicegate.gateway.upstream.base import CallFailed, Cause
from sluicegate.wire.protocol import Call, Failed
from tests.support.dispatching import Outcomes, dispatch, endpoint, state, work
from tests.support.scripted_client import Script, ScriptedClient, Step, echo_all

EU, US = endpoint("eu-0"), endpoint("us-0", region="us")


class Scene:
    """A dispatcher over scripted backends, one script for each; those without one answer."""

    def __init__(
        self,
        scripts: dict[str, Script] | None = None,
        *,
        endpoints: tuple[Endpoint, ...] = (EU, US),
        routing: RoutingConfig | None = None,
        tracer: Tracer | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.scripts = scripts or {}
        self.loop = asyncio.get_running_loop()
        self.fleet = Fleet(clock=self.loop.time, random=Random(1))
        self.fleet.configure(endpoints, routing or RoutingConfig())
        for each in endpoints:
            self.fleet.observe(each, state(each.backend))
        self.client = ScriptedClient(self._script)
        self.reprobed: list[str] = []
        self.dispatcher = Dispatcher(
            fleet=self.fleet,
            client=self.client,
            reprobe=lambda each: self.reprobed.append(each.backend),
            clock=clock or self.loop.time,
            tracer=tracer,
        )
        self.outcomes = Outcomes()

    def _script(self, target: Endpoint, call: Call) -> AsyncIterator[Step]:
        return self.scripts.get(target.backend, echo_all)(target, call)

    async def run(
        self,
        count: int,
        *,
        within: float = 60.0,
        traceparent: str = "",
        atomic: bool = False,
        model: ServedModel | None = None,
    ) -> Outcomes:
        """Run so many items as one request; all must end, and leave nothing in flight."""
        async with self.dispatcher:
            await dispatch(
                self.dispatcher,
                work(count, atomic=atomic, model=model),
                deadline=self.loop.time() + within,
                settle=self.outcomes.settle,
                traceparent=traceparent,
            )
        assert len(self.outcomes.by_index) == count
        assert all(each.in_flight == 0 for each in self.fleet.statistics())
        return self.outcomes

    def called(self) -> list[str]:
        """Return the backends called, in order."""
        return [str(target.backend) for target, _ in self.client.calls]


def steps(*given: Step) -> Script:
    """Return a backend that does these steps at every call."""

    async def script(target: Endpoint, call: Call) -> AsyncIterator[Step]:
        for step in given:
            yield step

    return script


def failing(cause: Cause, *, status: int = 0, code: str = "", retryable: bool = True) -> Script:
    """Return a backend whose every call fails."""
    return steps(CallFailed(cause, "scripted", status=status, code=code, retryable=retryable))


def item_failure(index: int, *, retryable: bool, code: str = "run_failed") -> Failed:
    """Return the failure of one item."""
    status = 500 if retryable else 422
    return Failed(index=index, status=status, code=code, detail="no", retryable=retryable)
