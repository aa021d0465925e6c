"""Probes every backend for its state at intervals, and reports it to the fleet."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from math import ceil
from random import Random
from typing import Self

from sluicegate.gateway.routing.endpoint_state import Health, ProbeFailure
from sluicegate.gateway.routing.fleet import Fleet
from sluicegate.gateway.tasks import TaskScope, pause
from sluicegate.gateway.types import Endpoint
from sluicegate.gateway.upstream.base import BackendClient, CallFailed, Cause
from sluicegate.wire.protocol import ServingState

_log = logging.getLogger(__name__)
# The fewest seconds between two probes of one backend.
MIN_INTERVAL = 0.05
# The most probes a second of this process in the long run: those of a large fleet would keep a core
# busy. Calls tell of health, too: one that finds a backend unreachable has it probed at once.
MOST_PROBES = 400.0
# The most probes at a time. All of a large fleet at once, at a start, would take longer to connect
# than `connect_timeout`.
MOST_AT_ONCE = 256
# Seconds for which a start waits for backends: while none is ready, and once one is.
FIRST_READY_TIMEOUT = 5.0
ALL_READY_TIMEOUT = 1.0
# Intervals vary by this share, so that gateways do not probe in step.
JITTER = 0.2
# Seconds that a probe may take beyond its time-out on a busy machine.
_GRACE = 1.0


BringUp = Callable[[Endpoint, ServingState], Awaitable[ServingState]]


def effective_interval(fleet: Fleet) -> float:
    """Return the seconds between two probes of one backend, give or take `JITTER`.

    They are more than configured in a large fleet.
    """
    return max(fleet.routing.probe_interval, fleet.size / MOST_PROBES)


async def _as_it_is(endpoint: Endpoint, state: ServingState) -> ServingState:  # noqa: ARG001
    return state


class _ProbeLoop:
    """Holds the state of the task that probes one endpoint."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.wake = asyncio.Event()
        self.next: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once a probe that begins from now on has ended, or none will."""
        self.first = self.next
        self.task: asyncio.Task[None] | None = None
        self._problem: str | None = None
        """Why the last probe did not find the backend ready; empty if it did."""

    def log_change(self, found: ServingState | ProbeFailure) -> bool:
        """Log a new reason not to use the backend, or that it is used again.

        Return whether this is the first probe, or its result has changed.
        """
        if isinstance(found, ProbeFailure):
            problem = found.detail
        else:
            problem = "" if found.ready else ", ".join(found.missing) or "it does not say why"
        if problem == self._problem:
            return False
        is_first, self._problem = self._problem is None, problem
        backend = {"backend": self.endpoint.backend, "region": self.endpoint.region}
        if problem:
            _log.warning("a backend did not pass its probe", extra={**backend, "reason": problem})
        elif not is_first:
            _log.info("a backend passes its probe again", extra=backend)
        return True

    def request_probe(self) -> "asyncio.Future[None]":
        """Begin the next probe soon; return `next`, to be waited for but not cancelled."""
        self.wake.set()
        return self.next

    def begin(self) -> "asyncio.Future[None]":
        """Return the future of the probe that begins now."""
        self.wake.clear()
        ended, self.next = self.next, asyncio.get_running_loop().create_future()
        return ended


class Prober:
    """Probes the fleet's endpoints, as an async context manager."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        client: BackendClient,
        random: Random,
        bring_up: BringUp = _as_it_is,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`bring_up` is awaited with each state, and returns the one to report.

        `changed` is called after the first probe of a backend, and when the reason why the backend
        is not used has changed.
        """
        self._fleet = fleet
        self._bring_up = bring_up
        self._changed = changed
        self._client = client
        self._random = random
        self._tasks = TaskScope()
        self._probe_loops: dict[Endpoint, _ProbeLoop] = {}
        self._interval = fleet.routing.probe_interval
        self._new_states: dict[Endpoint, ServingState] = {}
        self._slots = asyncio.Semaphore(MOST_AT_ONCE)

    async def __aenter__(self) -> Self:
        self.refresh()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        for endpoint in tuple(self._probe_loops):
            self._stop(endpoint)
        await self._tasks.__aexit__(None, None, None)

    def refresh(self) -> None:
        """Follow the fleet's endpoints as now configured: new ones are probed at once.

        With another interval all are, rather than at the end of the interval before.
        """
        endpoints = dict.fromkeys(self._fleet.endpoints)  # in their order, unlike a set
        if self._fleet.routing.probe_interval != self._interval:
            self._interval = self._fleet.routing.probe_interval
            for probing in self._probe_loops.values():
                probing.wake.set()
        for endpoint in [*self._probe_loops]:
            if endpoint not in endpoints:
                self._stop(endpoint)
        for endpoint in endpoints:
            if endpoint in self._probe_loops:
                continue
            probing = self._probe_loops[endpoint] = _ProbeLoop(endpoint)
            if (state := self._new_states.get(endpoint)) is not None:
                self._fleet.observe(endpoint, state)
            probing.task = self._tasks.create_task(self._follow(probing))
        self._new_states = {}

    def _stop(self, endpoint: Endpoint) -> None:
        probing = self._probe_loops.pop(endpoint)
        probing.next.set_result(None)  # no caller may go on waiting for a removed endpoint
        if probing.task is not None:
            probing.task.cancel()

    async def probe_new(self, endpoints: Iterable[Endpoint]) -> None:
        """Probe those of `endpoints` that are new; the next `refresh` knows their states."""
        new = [endpoint for endpoint in endpoints if endpoint not in self._probe_loops]
        found = await asyncio.gather(*map(self._probe, new))
        self._new_states = {
            endpoint: state
            for endpoint, (state, _) in zip(new, found, strict=True)
            if isinstance(state, ServingState)
        }

    def probe_soon(self, endpoint: Endpoint) -> None:
        """Probe `endpoint` without waiting for its turn."""
        probing = self._probe_loops.get(endpoint)
        if probing is not None:
            probing.wake.set()

    async def probe_all(self) -> None:
        """Return when every endpoint was probed by a probe that began after this call.

        The wait is bounded by the time-outs of two probes, of as many as run one after the other.
        """
        waiters = [probing.request_probe() for probing in self._probe_loops.values()]
        if waiters:
            bound = 2 * (self._fleet.routing.probe_timeout + MIN_INTERVAL)
            bound *= ceil(len(waiters) / MOST_AT_ONCE)
            await asyncio.wait(waiters, timeout=bound + _GRACE)

    async def wait_for_first_probes(self) -> None:
        """Return when every endpoint configured now has been probed."""
        for probing in tuple(self._probe_loops.values()):
            await asyncio.wait([probing.first])

    async def wait_until_ready(
        self, *, first: float = FIRST_READY_TIMEOUT, rest: float = ALL_READY_TIMEOUT
    ) -> None:
        """Return when every backend is ready, or when the time for those that are not is over.

        That is `first` seconds while none is ready, and `rest` once one is: backends that start
        with the gateway are known before its first request, and one that is down delays no start
        for long.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + first
        is_any_ready = False
        await self.wait_for_first_probes()
        while (unready := self._unready()) and loop.time() < until:
            if not is_any_ready and len(unready) < len(self._probe_loops):
                is_any_ready = True
                until = min(until, loop.time() + rest)
            waiters = [probing.request_probe() for probing in unready]
            await asyncio.wait(waiters, timeout=max(0.0, until - loop.time()))

    def _unready(self) -> list[_ProbeLoop]:
        ready = {each.backend for each in self._fleet.statistics() if each.health is Health.READY}
        return [
            probing
            for probing in self._probe_loops.values()
            if probing.endpoint.backend not in ready
        ]

    async def _follow(self, probing: _ProbeLoop) -> None:
        while True:
            ended = probing.begin()
            try:
                found, took = await self._probe(probing.endpoint)
                self._fleet.observe(probing.endpoint, found, took)
                if probing.log_change(found):
                    self._changed()
            finally:
                ended.set_result(None)
            await asyncio.sleep(MIN_INTERVAL)
            interval = effective_interval(self._fleet)
            interval *= self._random.uniform(1 - JITTER, 1 + JITTER)
            await pause(probing.wake, interval - MIN_INTERVAL)

    async def _probe(self, endpoint: Endpoint) -> tuple[ServingState | ProbeFailure, float]:
        """Return what a probe found, and its seconds without the wait for its turn.

        The state is that of a backend that follows the operators' plans, if it can.
        """
        async with self._slots:
            clock, time_limit = asyncio.get_running_loop().time, self._fleet.routing.probe_timeout
            started = clock()
            try:
                found = await self._client.state(endpoint, time_limit=time_limit)
            except CallFailed as error:
                silence = time_limit if error.cause is Cause.TIMED_OUT else 0.0
                return ProbeFailure(detail=error.detail, silence=silence), clock() - started
            took = clock() - started
        return await self._bring_up(endpoint, found), took
