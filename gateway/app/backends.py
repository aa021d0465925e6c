"""Finds, probes and calls the backends that the active configuration names."""

import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Self

from sluicegate.gateway.dispatch.assignments import ModelAssigner
from sluicegate.gateway.dispatch.discovery import Discovery
from sluicegate.gateway.dispatch.dispatcher import Dispatcher
from sluicegate.gateway.dispatch.plans import ModelReloader, PlanFollower
from sluicegate.gateway.dispatch.prober import Prober
from sluicegate.gateway.routing.fleet import Fleet
from sluicegate.gateway.runtime.runtime import Runtime
from sluicegate.gateway.runtime.store import RuntimeStore
from sluicegate.gateway.telemetry.phases import PhaseDurations
from sluicegate.gateway.telemetry.tracing import Tracer
from sluicegate.gateway.types import Endpoint
from sluicegate.gateway.upstream.http import HttpBackendClient
from sluicegate.gateway.upstream.resolving import Resolver
from sluicegate.wire.plans import ServingPlans
from sluicegate.wire.protocol import ServingState

# The seconds at shutdown for calls for which no request waits. All requests have already ended,
# because the server drained first.
BACKGROUND_DRAIN = 0.5


class BackendAccess:
    """Owns the objects that find, probe and call backends. Applies new configurations to them.

    If a new configuration has new backends, these are probed before it takes effect. Until then,
    the old configuration stays in use.
    """

    def __init__(
        self,
        *,
        runtimes: RuntimeStore,
        client: HttpBackendClient,
        resolver: Resolver,
        clock: Callable[[], float],
        tracer: Tracer,
        load_plans: Callable[[], ServingPlans],
        changed: Callable[[], None],
        phases: PhaseDurations | None = None,
    ) -> None:
        chooser = random.Random()  # noqa: S311 - chooses among backends, guards nothing
        self._runtimes = runtimes
        self.client = client
        self.fleet = Fleet(clock=clock, random=chooser)
        self.discovery = Discovery(
            resolver=resolver, random=chooser, changed=self._take_resolved_names
        )
        self.plans = PlanFollower(load=load_plans, client=client)
        self.assigner = ModelAssigner(fleet=self.fleet, client=client, clock=clock)
        self.prober = Prober(
            fleet=self.fleet,
            client=client,
            random=chooser,
            bring_up=self._bring_up,
            changed=changed,
        )
        self.plans.on_change(self.prober.probe_all)
        self.reloader = ModelReloader(
            fleet=self.fleet, client=client, prober=self.prober, plans=self.plans
        )
        self.dispatcher = Dispatcher(
            fleet=self.fleet,
            client=client,
            reprobe=self.prober.probe_soon,
            clock=clock,
            tracer=tracer,
            drain=BACKGROUND_DRAIN,
            phases=phases,
        )
        self._stack = AsyncExitStack()
        self._configure(runtimes.current)
        runtimes.on_prepare(self._prepare)
        runtimes.on_swap(self._apply)

    async def __aenter__(self) -> Self:
        for each in (self.client, self.plans, self.prober, self.discovery, self.dispatcher):
            await self._stack.enter_async_context(each)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    async def _bring_up(self, endpoint: Endpoint, state: ServingState) -> ServingState:
        """Make a backend apply its models and the operators' plans. Return its new state."""
        state = await self.assigner.bring_up(endpoint, state)
        return await self.plans.bring_up(endpoint, state)

    async def _prepare(self, runtime: Runtime) -> None:
        await self.discovery.prepare(runtime.endpoints, runtime.document.routing)
        await self.prober.probe_new(self.discovery.expand(runtime.endpoints))

    def _apply(self, runtime: Runtime) -> None:
        self._configure(runtime)
        self.prober.refresh()

    def _configure(self, runtime: Runtime) -> None:
        routing = runtime.document.routing
        self.discovery.configure(runtime.endpoints, routing)
        endpoints = self.discovery.expand(runtime.endpoints)
        self.fleet.configure(endpoints, routing)
        unresolved = self.discovery.unresolved(runtime.endpoints)
        self.assigner.configure(endpoints, runtime.published, unresolved=unresolved)
        self.client.configure(endpoints, routing)

    async def _take_resolved_names(self) -> None:
        """Probe the backends at new addresses of DNS names, and then use these backends."""
        await self.prober.probe_new(self.discovery.expand(self._runtimes.current.endpoints))
        self._apply(self._runtimes.current)
