"""Asks every backend for its state, again and again, and tells the fleet."""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from random import Random
from types import TracebackType
from typing import Self

from backends.protocol import BackendState
from gateway.routing.fleet import Fleet, ProbeFailure
from gateway.routing.member import Health
from gateway.tasks import TaskScope
from gateway.types import Endpoint
from gateway.upstream.base import BackendClient, CallFailed, Cause

_log = logging.getLogger(__name__)
# Probes of one backend are so many seconds apart, however often one is asked for.
MIN_INTERVAL = 0.05
# How long a start waits for backends that are not ready: while none is, and once one is.
FIRST_PATIENCE = 5.0
REST_PATIENCE = 1.0
# Intervals vary by this share, so that gateways do not probe in step.
JITTER = 0.2
# What a probe may take beyond its time on a busy machine.
_GRACE = 1.0


class _Watch:
    """The probing of one endpoint."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.wake = asyncio.Event()
        self.probed = asyncio.Event()
        # Those who wait for a probe that begins after they asked.
        self.asked: list[asyncio.Future[None]] = []
        self.task: asyncio.Task[None] | None = None
        self._trouble = ""

    def tell(self, found: BackendState | ProbeFailure) -> None:
        """Log what keeps the backend from being used, once, and when that is over."""
        if isinstance(found, ProbeFailure):
            trouble = found.detail
        else:
            trouble = "" if found.ready else ", ".join(found.missing) or "it does not say why"
        if trouble == self._trouble:
            return
        self._trouble = trouble
        backend = {"backend": self.endpoint.backend, "region": self.endpoint.region}
        if trouble:
            _log.warning("a backend did not pass its probe", extra={**backend, "reason": trouble})
        else:
            _log.info("a backend passes its probe again", extra=backend)

    def ask(self) -> "asyncio.Future[None]":
        """Return what is done once a probe that begins from now on has ended."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.asked.append(future)
        self.wake.set()
        return future

    def settle(self, asked: "Sequence[asyncio.Future[None]] | None" = None) -> None:
        """Tell those who `asked`, by default all, that a probe has ended."""
        self.probed.set()
        for future in self.asked if asked is None else asked:
            if not future.done():
                future.set_result(None)


class Prober:
    """An async context manager that owns the probing of the fleet's endpoints."""

    def __init__(self, *, fleet: Fleet, client: BackendClient, random: Random) -> None:
        self._fleet = fleet
        self._client = client
        self._random = random
        self._tasks = TaskScope()
        self._watches: dict[Endpoint, _Watch] = {}
        self._interval = fleet.routing.probe_interval
        self._met: dict[Endpoint, BackendState] = {}

    async def __aenter__(self) -> Self:
        self.refresh()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for endpoint in tuple(self._watches):
            self._leave(endpoint)
        await self._tasks.__aexit__(kind, error, trace)

    def refresh(self) -> None:
        """Follow the fleet's endpoints as now configured: new ones are probed at once.

        With another interval all are, rather than at the end of the interval before.
        """
        endpoints = set(self._fleet.endpoints)
        if self._fleet.routing.probe_interval != self._interval:
            self._interval = self._fleet.routing.probe_interval
            for watch in self._watches.values():
                watch.wake.set()
        for endpoint in [*self._watches]:
            if endpoint not in endpoints:
                self._leave(endpoint)
        for endpoint in endpoints - self._watches.keys():
            watch = self._watches[endpoint] = _Watch(endpoint)
            if (met := self._met.get(endpoint)) is not None:
                self._fleet.observe(endpoint, met)
            watch.task = self._tasks.create_task(self._follow(watch))
        self._met = {}

    def _leave(self, endpoint: Endpoint) -> None:
        watch = self._watches.pop(endpoint)
        watch.settle()  # nobody waits for one that left
        if watch.task is not None:
            watch.task.cancel()

    async def probe_new(self, endpoints: Iterable[Endpoint]) -> None:
        """Ask those of `endpoints` that are new, which the next `refresh` then knows at once."""
        new = [endpoint for endpoint in endpoints if endpoint not in self._watches]
        found = await asyncio.gather(*map(self._ask, new))
        self._met = {
            endpoint: state
            for endpoint, state in zip(new, found, strict=True)
            if isinstance(state, BackendState)
        }

    def probe_soon(self, endpoint: Endpoint) -> None:
        """Probe `endpoint` without waiting for its turn."""
        watch = self._watches.get(endpoint)
        if watch is not None:
            watch.wake.set()

    async def probe_all(self) -> None:
        """Return when every endpoint was probed anew, by a probe that began after this call.

        One whose probes do not end in their time is waited for no longer than two of them take.
        """
        asked = [watch.ask() for watch in self._watches.values()]
        if asked:
            bound = 2 * (self._fleet.routing.probe_timeout + MIN_INTERVAL)
            await asyncio.wait(asked, timeout=bound + _GRACE)

    async def first_round(self) -> None:
        """Return when every endpoint configured now has been probed."""
        for watch in tuple(self._watches.values()):
            await watch.probed.wait()

    async def wait_until_ready(
        self, *, first: float = FIRST_PATIENCE, rest: float = REST_PATIENCE
    ) -> None:
        """Return when every backend is ready, or when those that are not had their time.

        They have `first` seconds while none is ready, and `rest` once one is: backends that start
        at the same time as the gateway are known before its first request, and one that is away
        keeps nobody waiting for long.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + first
        is_any_ready = False
        await self.first_round()
        while (unready := self._unready()) and loop.time() < until:
            if not is_any_ready and len(unready) < len(self._watches):
                is_any_ready = True
                until = min(until, loop.time() + rest)
            asked = [watch.ask() for watch in unready]
            await asyncio.wait(asked, timeout=max(0.0, until - loop.time()))

    def _unready(self) -> list[_Watch]:
        ready = {each.backend for each in self._fleet.statistics() if each.health is Health.READY}
        return [watch for watch in self._watches.values() if watch.endpoint.backend not in ready]

    async def _follow(self, watch: _Watch) -> None:
        loop = asyncio.get_running_loop()
        while True:
            watch.wake.clear()
            asked, watch.asked = watch.asked, []
            try:
                asked_at = loop.time()
                found = await self._ask(watch.endpoint)
                self._fleet.observe(watch.endpoint, found, loop.time() - asked_at)
                watch.tell(found)
            finally:
                watch.settle(asked)
            await asyncio.sleep(MIN_INTERVAL)
            interval = self._fleet.routing.probe_interval
            interval *= self._random.uniform(1 - JITTER, 1 + JITTER)
            try:
                async with asyncio.timeout(interval - MIN_INTERVAL):
                    await watch.wake.wait()
            except TimeoutError:
                continue

    async def _ask(self, endpoint: Endpoint) -> BackendState | ProbeFailure:
        patience = self._fleet.routing.probe_timeout
        try:
            return await self._client.state(endpoint, patience=patience)
        except CallFailed as error:
            is_silent = error.cause is Cause.TIMED_OUT
            return ProbeFailure(detail=error.detail, silence=patience if is_silent else 0.0)
