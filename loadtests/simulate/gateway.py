"""Runs the production dispatcher, fleet and prober of a gateway over simulated backends."""

import asyncio
from collections.abc import Callable, Mapping
from random import Random

import msgspec

from backends.batching.row import RowWaiter
from backends.errors import BackendError, Overloaded
from backends.plans import PlanTrial, ServingPlans
from backends.protocol import (
    Call,
    CallItem,
    ClassifyParameters,
    Done,
    Failed,
    ModelInfo,
    PlanVerdict,
    ServingState,
    Task,
)
from gateway.dispatch.dispatcher import Dispatcher
from gateway.dispatch.prober import Prober
from gateway.dispatch.work import Outcomes, Work, WorkItem
from gateway.routing.fleet import Fleet
from gateway.types import Endpoint
from gateway.upstream.base import CallFailed, Cause, OnEnd, Receive
from loadtests.simulate.backend import SimulatedBackend
from loadtests.simulate.scenario import Scenario, draw_length
from loadtests.simulate.world import World

_UNREACHABLE = CallFailed(Cause.UNREACHABLE, "connection refused")
_JITTER = 0.1


def length_of(body: bytes) -> int:
    """Return the number of tokens of an item: the first two bytes of its body."""
    return int.from_bytes(body[:2], "big")


class SimulatedCall:
    """A call to a backend. Its items end one by one."""

    def __init__(
        self,
        client: "SimulatedClient",
        endpoint: Endpoint,
        receive: Receive,
        on_end: OnEnd,
        idle_timeout: float,
    ) -> None:
        self._client = client
        self.endpoint = endpoint
        self._receive = receive
        self._on_end = on_end
        self._backend: SimulatedBackend | None = None
        self._waiters: list[RowWaiter] = []
        self._open = 0
        self._has_ended = False
        self._idle_timeout = idle_timeout
        self._timer: asyncio.TimerHandle | None = None

    def arrive(self, call: Call, delay: float) -> None:
        """Deliver the call to the backend."""
        client, backend = self._client, self._client.world.backend(self.endpoint)
        if self._has_ended or client.world.is_silent(self.endpoint):
            return
        if backend is None:
            client.later(delay, self.end, _UNREACHABLE)
            return
        self._backend, self._open = backend, len(call.items)
        for index, item in enumerate(call.items):
            try:
                self._waiters.append(self._begin(backend, index, item, delay))
            except Overloaded as error:
                self.withdraw()
                refusal = CallFailed(
                    Cause.REFUSED,
                    "overloaded",
                    status=error.status,
                    code=error.code,
                    retry_after=error.retry_after,
                )
                client.later(delay, self.end, refusal)
                return

    def _begin(
        self, backend: SimulatedBackend, index: int, item: CallItem, delay: float
    ) -> RowWaiter:
        length = length_of(item.body)

        def ended(error: BackendError | None) -> None:
            frame: Done | Failed = Done(index=index, result=b"", rows=1, tokens=length)
            if error is not None:
                frame = Failed(
                    index=index,
                    status=error.status,
                    code=error.code,
                    detail="",
                    retryable=error.retryable,
                )
            self._open -= 1
            # A region that was lost in the meantime answers nothing.
            if not self._client.world.is_silent(self.endpoint):
                self._client.later(delay, self._deliver, frame, item.body, self._open == 0)

        return backend.begin(
            length, scope=item.scope, remaining=item.remaining - delay, ended=ended
        )

    def _deliver(self, frame: Done | Failed, body: bytes, is_last: bool) -> None:  # noqa: FBT001 - of `call_later`
        if self._has_ended:
            return
        if isinstance(frame, Done):
            self._client.answered(self.endpoint, body)
        self._receive([frame])
        if is_last and not self._has_ended and self._backend is not None:
            self._finish()
            self._on_end(self._backend.report())

    def end(self, error: CallFailed) -> None:
        """End the call with an error, without a report."""
        if not self._has_ended:
            self._finish()
            self.withdraw()
            self._on_end(error)

    def cancel(self) -> None:
        """See `StartedCall.cancel`."""
        if not self._has_ended:
            self._finish()
            self.withdraw()

    def withdraw(self) -> None:
        """Withdraw the unanswered items from the backend."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if self._backend is not None and waiter.is_awaited:
                self._backend.leave(waiter)

    def fall_silent(self) -> None:
        """End the call after the idle timeout: no byte arrives from now on."""
        silent = CallFailed(Cause.TIMED_OUT, "silence")
        self._timer = self._client.later(self._idle_timeout, self.end, silent)

    def _finish(self) -> None:
        self._has_ended = True
        self._client.open.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()


class SimulatedClient:
    """Implements `BackendClient` for a gateway; `round_trips` are by region."""

    def __init__(
        self,
        world: World,
        *,
        info: ModelInfo,
        round_trips: Mapping[str, float],
        random: Random,
        answered: Callable[[Endpoint, bytes], None],
    ) -> None:
        self.answered = answered
        self.world = world
        self._loop = asyncio.get_running_loop()
        self.later = self._loop.call_later
        self.open: dict[SimulatedCall, None] = {}
        world.on_lost.append(self._lost)
        self._info = info
        self._round_trips = round_trips
        self._random = random

    def start_call(
        self,
        endpoint: Endpoint,
        call: Call,
        *,
        deadline: float,
        idle_timeout: float,
        receive: Receive,
        on_end: OnEnd,
    ) -> SimulatedCall:
        """See `BackendClient.start_call`."""
        time_left = deadline - self._loop.time()
        started = SimulatedCall(self, endpoint, receive, on_end, min(idle_timeout, time_left))
        self.open[started] = None
        delay = self._delay(endpoint)
        if self.world.is_silent(endpoint):
            started.fall_silent()
        else:
            self._loop.call_later(delay, started.arrive, call, delay)
        return started

    def _lost(self, region: str) -> None:
        for call in self.open:
            if call.endpoint.region == region:
                call.fall_silent()

    async def state(self, endpoint: Endpoint, *, time_limit: float) -> ServingState:
        """See `BackendClient.state`."""
        if self.world.is_silent(endpoint):
            await asyncio.sleep(time_limit)
            raise CallFailed(Cause.TIMED_OUT, "silence")
        await asyncio.sleep(2 * self._delay(endpoint))
        backend = self.world.backend(endpoint)
        if backend is None:
            raise _UNREACHABLE
        return ServingState(
            backend_id=endpoint.backend,
            region=endpoint.region,
            ready=True,
            missing=[],
            provider="simulated",
            models=[self._info],
            report=backend.report(),
        )

    async def reload(
        self, endpoint: Endpoint, plans: ServingPlans, *, time_limit: float
    ) -> ServingState:
        """See `BackendClient.reload`."""
        raise NotImplementedError

    async def check(
        self, endpoint: Endpoint, trial: PlanTrial, *, time_limit: float
    ) -> PlanVerdict:
        """See `BackendClient.check`."""
        raise NotImplementedError

    def _delay(self, endpoint: Endpoint) -> float:
        jitter = self._random.uniform(1.0 - _JITTER, 1.0 + _JITTER)
        return 0.5 * self._round_trips[endpoint.region] * jitter


_PARAMETERS = msgspec.msgpack.encode(ClassifyParameters())
MODEL = ModelInfo(
    name="simulated",
    revision="aaaaaaaaaaaa",
    profile="fp32",
    tasks=[Task.CLASSIFY],
    algorithm="none",
    algorithm_version=1,
    max_tokens=512,
)
Ended = Callable[[float, str, str], None]
"""Takes the seconds of a request, the code of its failure, and the region that answered it."""


class SimulatedGateway:
    """One gateway, and the callers that send requests to it."""

    def __init__(
        self,
        region: str,
        *,
        scenario: Scenario,
        world: World,
        fleet: Fleet,
        round_trips: dict[str, float],
        random: Random,
    ) -> None:
        self.region = region
        self.fleet = fleet
        self._scenario = scenario
        self._world = world
        self._random = random
        self._loop = asyncio.get_running_loop()
        self._order = sorted(round_trips, key=lambda each: (round_trips[each], each))
        self._answered: dict[bytes, str] = {}
        client = SimulatedClient(
            world, info=MODEL, round_trips=round_trips, random=random, answered=self._note
        )
        self.prober = Prober(fleet=fleet, client=client, random=random)
        self.dispatcher = Dispatcher(
            fleet=fleet, client=client, reprobe=self.prober.probe_soon, clock=self._loop.time
        )

    def follow(self) -> None:
        """Route to the backends that DNS has now."""
        found = self._world.endpoints()
        endpoints = sorted(found, key=lambda each: self._order.index(each.region))
        self.fleet.configure(endpoints, self._scenario.routing)
        self.prober.refresh()

    def send(self, ended: Ended, tokens: int = 0) -> None:
        """Start a request of one item with `tokens` tokens, or with a random length."""
        started = self._loop.time()
        model = self.fleet.model(MODEL.name)
        if model is None:
            ended(0.0, "unknown_model", "")
            return
        length = tokens or draw_length(self._random)
        body = length.to_bytes(2, "big") + self._random.randbytes(8)
        item = WorkItem(index=0, body=body, scope="tenant:a", affinity=body)
        work = Work(
            model=model, task=Task.CLASSIFY, parameters=_PARAMETERS, items=(item,), atomic=True
        )

        def settle(outcomes: Outcomes) -> None:
            failure = outcomes[0][1].failure
            code = "" if failure is None else failure.code
            ended(self._loop.time() - started, code, self._answered.pop(body))

        self._answered[body] = ""
        deadline = started + self._scenario.deadline
        self.dispatcher.start(work, deadline=deadline, settle=settle)

    def _note(self, endpoint: Endpoint, body: bytes) -> None:
        """Record the region that answered an item."""
        if body in self._answered:
            self._answered[body] = endpoint.region
