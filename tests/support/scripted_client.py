"""Implements `BackendClient` in memory from a script: the fake behind tests of dispatch.

That it keeps the promises of the real client is shown in `tests/contract`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable

import msgspec

from sluicegate.gateway.types import Endpoint
from sluicegate.gateway.upstream.base import CallFailed, Cause, OnEnd, Receive
from sluicegate.wire.plans import Assignment, PlanTrial, ServingPlans
from sluicegate.wire.protocol import Call, Done, Failed, PlanVerdict, Report, ServingState
from testing.stub_backend import echo


class Hang(msgspec.Struct, frozen=True):
    """A step of a script that never ends."""


class Pause(msgspec.Struct, frozen=True):
    """A step of a script that lets other tasks run."""


Step = Done | Failed | tuple[Done, ...] | Report | CallFailed | Hang | Pause
"""A tuple has outcomes that arrive together."""
Script = Callable[[Endpoint, Call], AsyncIterator[Step]]


async def echo_all(endpoint: Endpoint, call: Call) -> AsyncIterator[Step]:
    """Answer every item."""
    for index in range(len(call.items)):
        yield echo(call, index, endpoint.backend)
    yield Report()


class ScriptedClient:
    """Plays `script` for every call, and gives `states` of backends by id."""

    def __init__(self, script: Script = echo_all) -> None:
        self.script = script
        self.states: dict[str, ServingState] = {}
        self.calls: list[tuple[Endpoint, Call]] = []

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
        """See `BackendClient.start_call`."""
        self.calls.append((endpoint, call))

        async def run() -> None:
            end: Report | BaseException
            try:
                end = await self._play(endpoint, call, deadline, idle_timeout, receive)
            except Exception as error:  # noqa: BLE001 - whatever it is, it ends the call
                end = error
            on_end(end)

        return asyncio.get_running_loop().create_task(run())

    async def _play(
        self,
        endpoint: Endpoint,
        call: Call,
        deadline: float,
        idle_timeout: float,
        receive: Receive,
    ) -> Report:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(min(deadline, loop.time() + idle_timeout)):
                async for step in self.script(endpoint, call):
                    if isinstance(step, CallFailed):
                        raise step
                    if isinstance(step, Report):
                        return step
                    if isinstance(step, Hang):
                        await loop.create_future()
                    elif isinstance(step, Pause):
                        await asyncio.sleep(0)
                    else:
                        receive(step if isinstance(step, tuple) else [step])
        except TimeoutError as error:
            raise CallFailed(Cause.TIMED_OUT, "silence") from error
        raise CallFailed(Cause.CUT, "the script ended without a report")

    async def state(self, endpoint: Endpoint, *, time_limit: float) -> ServingState:
        """See `BackendClient.state`."""
        state = self.states.get(endpoint.backend)
        if state is None:
            raise CallFailed(Cause.UNREACHABLE, "no such backend")
        return state

    async def reload(
        self, endpoint: Endpoint, plans: ServingPlans, *, time_limit: float
    ) -> ServingState:
        """See `BackendClient.reload`."""
        state = await self.state(endpoint, time_limit=time_limit)
        version = max(state.plans, plans.version)
        self.states[endpoint.backend] = msgspec.structs.replace(state, plans=version)
        return self.states[endpoint.backend]

    async def assign(
        self, endpoint: Endpoint, assignment: Assignment, *, time_limit: float
    ) -> ServingState:
        """See `BackendClient.assign`."""
        state = await self.state(endpoint, time_limit=time_limit)
        return msgspec.structs.replace(state, assignment=assignment)

    async def check(
        self, endpoint: Endpoint, trial: PlanTrial, *, time_limit: float
    ) -> PlanVerdict:
        """See `BackendClient.check`."""
        return PlanVerdict()
