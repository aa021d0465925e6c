"""Runs production's dispatcher, fleet and prober of a gateway with simulated backends."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random

import msgspec
from typing_extensions import override

from loadtests.simulate.world import World
from sluicegate.backends.batching.row import RowWaiter
from sluicegate.backends.errors import BackendError, Overloaded
from sluicegate.gateway.cache.key import CacheKey
from sluicegate.gateway.dispatch.dispatcher import Dispatcher
from sluicegate.gateway.dispatch.prober import Prober
from sluicegate.gateway.dispatch.work import OpenItem, Work
from sluicegate.gateway.routing.fleet import Fleet
from sluicegate.gateway.types import Endpoint
from sluicegate.gateway.upstream.base import BackendClient, CallFailed, Cause, OnEnd, Receive
from sluicegate.wire.plans import Assignment, PlanTrial, ServingPlans
from sluicegate.wire.protocol import (
    Call,
    Done,
    EmbedParameters,
    Failed,
    ModelInfo,
    PlanVerdict,
    Report,
    ServingState,
    Task,
)

MODEL = ModelInfo(
    name="tiny",
    revision="aaaaaaaaaaaa",
    profile="fp32",
    tasks=[Task.EMBED],
    algorithm="none",
    algorithm_version=1,
    max_tokens=512,
)
Ended = Callable[[float, str, bytes], None]
"""Takes the seconds of a request, the code of its failure, and its result.

The result of a simulated backend is the name of the backend's region.
"""
_Frames = asyncio.Queue[Done | Failed | None]
"""Results of items on their way back; after `None`, nothing more arrives."""
_JITTER = 0.1
_PARAMETERS = msgspec.msgpack.encode(EmbedParameters())


def length_of(body: bytes) -> int:
    """Return the number of tokens of an item, which is in the first two bytes of its body."""
    return int.from_bytes(body[:2], "big")


class SimulatedClient(BackendClient):
    """Calls simulated backends for one gateway; `round_trips` has the seconds to each region."""

    def __init__(self, world: World, *, round_trips: Mapping[str, float], random: Random) -> None:
        self._world = world
        self._round_trips = round_trips
        self._random = random
        self._loop = asyncio.get_running_loop()
        self._open: dict[_Frames, str] = {}
        world.on_lost.append(self._lose)

    @override
    def start_call(
        self,
        endpoint: Endpoint,
        call: Call,
        *,
        deadline: float,
        idle_timeout: float,
        receive: Receive,
        on_end: OnEnd,
    ) -> asyncio.Task[None]:
        patience = min(idle_timeout, deadline - self._loop.time())

        async def run() -> None:
            end: Report | CallFailed
            try:
                end = await self._call(endpoint, call, patience, receive)
            except CallFailed as error:
                end = error
            except Overloaded as error:
                end = CallFailed(
                    Cause.REFUSED,
                    "overloaded",
                    status=error.status,
                    code=error.code,
                    retry_after=error.retry_after,
                )
                await asyncio.sleep(self._delay(endpoint))
            on_end(end)

        return self._loop.create_task(run())

    async def _call(
        self, endpoint: Endpoint, call: Call, patience: float, receive: Receive
    ) -> Report:
        """Let a backend run the items of a call, and pass on each result as soon as it is ready.

        Raises:
            Overloaded: the backend refuses an item.
            CallFailed: the region of the backend is lost.
        """
        backend, delay = self._world.backend(endpoint), self._delay(endpoint)
        frames, waiters = _Frames(), list[RowWaiter]()
        self._open[frames] = endpoint.region
        try:
            if self._world.is_silent(endpoint):
                frames.put_nowait(None)
            await asyncio.sleep(delay)
            # A lost backend does not answer.
            for index, item in enumerate(call.items if frames.empty() else ()):
                length, remaining = length_of(item.body), item.remaining - delay
                region = endpoint.region.encode()
                done = Done(index=index, result=region, rows=1, tokens=length)
                ended = partial(self._answer, endpoint, done, frames, delay)
                waiters.append(
                    backend.begin(length, scope=item.scope, remaining=remaining, ended=ended)
                )
            for _ in call.items:
                frame = await frames.get()
                if frame is None:
                    await asyncio.sleep(patience)
                    raise CallFailed(Cause.TIMED_OUT, "silence")
                receive([frame])
            return backend.report()
        finally:
            del self._open[frames]
            for waiter in waiters:
                if waiter.is_awaited:
                    backend.leave(waiter)

    def _answer(
        self,
        endpoint: Endpoint,
        done: Done,
        frames: _Frames,
        delay: float,
        error: BackendError | None,
    ) -> None:
        frame: Done | Failed = done
        if error is not None:
            frame = Failed(
                index=done.index,
                status=error.status,
                code=error.code,
                detail="",
                retryable=error.retryable,
            )
        # A region that was lost in the meantime does not answer.
        if not self._world.is_silent(endpoint):
            self._loop.call_later(delay, frames.put_nowait, frame)

    def _lose(self, lost: str) -> None:
        for frames, region in self._open.items():
            if region == lost:
                frames.put_nowait(None)

    @override
    async def state(self, endpoint: Endpoint, *, time_limit: float) -> ServingState:
        if self._world.is_silent(endpoint):
            await asyncio.sleep(time_limit)
            raise CallFailed(Cause.TIMED_OUT, "silence")
        await asyncio.sleep(2 * self._delay(endpoint))
        return ServingState(
            backend_id=endpoint.backend,
            region=endpoint.region,
            ready=True,
            missing=[],
            provider="simulated",
            models=[MODEL],
            report=self._world.backend(endpoint).report(),
        )

    @override
    async def reload(
        self, endpoint: Endpoint, plans: ServingPlans, *, time_limit: float
    ) -> ServingState:
        raise NotImplementedError

    @override
    async def assign(
        self, endpoint: Endpoint, assignment: Assignment, *, time_limit: float
    ) -> ServingState:
        raise NotImplementedError

    @override
    async def check(
        self, endpoint: Endpoint, trial: PlanTrial, *, time_limit: float
    ) -> PlanVerdict:
        raise NotImplementedError

    def _delay(self, endpoint: Endpoint) -> float:
        jitter = self._random.uniform(1.0 - _JITTER, 1.0 + _JITTER)
        return 0.5 * self._round_trips[endpoint.region] * jitter


class Caller:
    """Sends single items to the backends of a fleet, as a gateway does."""

    def __init__(self, *, fleet: Fleet, client: BackendClient, random: Random) -> None:
        self.fleet = fleet
        self.prober = Prober(fleet=fleet, client=client, random=random)
        self.dispatcher = Dispatcher(
            fleet=fleet,
            client=client,
            reprobe=self.prober.probe_soon,
            clock=asyncio.get_running_loop().time,
        )

    def start(self, body: bytes, ended: Ended, limit: float) -> None:
        """Start a request for `MODEL`; its deadline is in `limit` seconds."""
        found = self.fleet.model(MODEL.name)
        if found is None:
            ended(0.0, "unknown_model", b"")
            return
        started = asyncio.get_running_loop().time()
        work = Work(
            model=found,
            task=Task.EMBED,
            parameters=_PARAMETERS,
            owner=_Request(started, ended),
            deadline=started + limit,
            scope="tenant:a",
        )
        self.dispatcher.start([OpenItem(work, 0, body, CacheKey(body, b""))])


class _Request:
    """A request of one item that waits for its answer."""

    def __init__(self, started: float, ended: Ended) -> None:
        self._started = started
        self._ended = ended

    def items_ended(self, items: Sequence[OpenItem]) -> None:
        """See `ItemOwner`."""
        seconds = asyncio.get_running_loop().time() - self._started
        if (outcome := items[0].outcome) is not None:
            failure = outcome.failure
            self._ended(seconds, "" if failure is None else failure.code, outcome.result)


class SimulatedGateway(Caller):
    """One gateway, and the callers that send requests to it."""

    def __init__(
        self,
        region: str,
        *,
        world: World,
        fleet: Fleet,
        round_trips: Mapping[str, float],
        random: Random,
    ) -> None:
        client = SimulatedClient(world, round_trips=round_trips, random=random)
        super().__init__(fleet=fleet, client=client, random=random)
        self.region = region
        self._world = world
        self._random = random
        self._order = sorted(round_trips, key=lambda each: (round_trips[each], each))

    def follow(self) -> None:
        """Route to the backends that DNS lists now."""
        found = self._world.endpoints()
        endpoints = sorted(found, key=lambda each: self._order.index(each.region))
        self.fleet.configure(endpoints, self.fleet.routing)
        self.prober.refresh()

    def body(self, tokens: int) -> bytes:
        """Return the body of an item with `tokens` tokens."""
        return tokens.to_bytes(2, "big") + self._random.randbytes(8)
