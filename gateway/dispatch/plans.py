"""Keeps backends on the operators' plans of how revisions of models are served; reloads backends.

The ledger has the plans. A backend keeps them in memory: one that starts, or joins, has none, and
gets them in the probe that finds this out, before its models are known here.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Self

from sluicegate.gateway.dispatch.prober import Prober
from sluicegate.gateway.errors import DependencyUnavailable, UpstreamFailed
from sluicegate.gateway.routing.fleet import Fleet
from sluicegate.gateway.tasks import PeriodicTask
from sluicegate.gateway.types import BackendId, Endpoint
from sluicegate.gateway.upstream.base import BackendClient, CallFailed
from sluicegate.wire.plans import ServingPlans
from sluicegate.wire.protocol import ServingState

_log = logging.getLogger(__name__)
# Seconds that a start waits for the ledger.
_FIRST_READ = 2.0
# Opening a model takes seconds; digesting the files of a large one may take longer.
_TIME_LIMIT = 300.0
# Seconds between two looks at the ledger: other gateway regions change plans, too.
_POLL = 2.0
# Seconds after which a backend that does not follow is given the same plans again.
_RETRY = 30.0


class PlanFollower:
    """Reads the plans, and gives them to backends that lack them."""

    def __init__(
        self, *, load: Callable[[], ServingPlans], client: BackendClient, poll: float = _POLL
    ) -> None:
        """`load` blocks, and may raise `DependencyUnavailable`."""
        self._load = load
        self._client = client
        self.current = ServingPlans()
        self._refused: dict[BackendId, tuple[int, float]] = {}
        self._on_change: Callable[[], Awaitable[object]] | None = None
        self._polling = PeriodicTask(
            self._look, interval=poll, failure="the plans of models were not read"
        )

    def on_change(self, callback: Callable[[], Awaitable[object]]) -> None:
        """Await `callback` when other plans were found at a look."""
        self._on_change = callback

    async def __aenter__(self) -> Self:
        with contextlib.suppress(DependencyUnavailable, TimeoutError):
            async with asyncio.timeout(_FIRST_READ):
                await self.read_again()
        await self._polling.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._polling.__aexit__(*exc_info)

    async def read_again(self) -> None:
        """Read the plans.

        Raises:
            DependencyUnavailable: the ledger cannot be reached; the last ones stay.
        """
        self.current = await asyncio.to_thread(self._load)

    async def bring_up(self, endpoint: Endpoint, state: ServingState) -> ServingState:
        """Return the state of a backend that follows the plans; its own where it does not."""
        plans = self.current
        if state.plans >= plans.version or not state.ready:
            return state
        now = asyncio.get_running_loop().time()
        version, until = self._refused.get(endpoint.backend, (0, 0.0))
        if version == plans.version and now < until:
            return state
        extra = {"backend": endpoint.backend, "region": endpoint.region}
        try:
            found = await self._client.reload(endpoint, plans, time_limit=_TIME_LIMIT)
        except CallFailed as error:
            _log.warning(
                "a backend did not take the plans of models", extra=extra | {"reason": error.detail}
            )
        else:
            if found.plans >= plans.version:
                _log.info("a backend was given the plans of models", extra=extra)
                return found
        self._refused[endpoint.backend] = (plans.version, now + _RETRY)
        return state

    async def _look(self) -> None:
        before = self.current.version
        with contextlib.suppress(DependencyUnavailable):
            await self.read_again()
        if self.current.version != before and self._on_change is not None:
            await self._on_change()


class ModelReloader:
    """Reloads backends. A second reload is harmless: what did not change stays as it is."""

    def __init__(
        self, *, fleet: Fleet, client: BackendClient, prober: Prober, plans: PlanFollower
    ) -> None:
        self._fleet = fleet
        self._client = client
        self._prober = prober
        self._plans = plans

    async def reload(self) -> None:
        """Return when each backend serves what its repository holds and the fleet knows it.

        Raises:
            UpstreamFailed: a backend did not; the message names it. The others did.
            DependencyUnavailable: the ledger, which has the operators' plans, cannot be reached.
        """
        await self._plans.read_again()
        endpoints = tuple(self._fleet.endpoints)
        problems = await asyncio.gather(*map(self._reload, endpoints))
        # A probe that began before may report an older state: wait for one that begins now.
        await self._prober.probe_all()
        failed = [problem for problem in problems if problem is not None]
        if failed:
            raise UpstreamFailed("; ".join(failed))

    async def _reload(self, endpoint: Endpoint) -> str | None:
        try:
            state = await self._client.reload(endpoint, self._plans.current, time_limit=_TIME_LIMIT)
        except CallFailed as error:
            return f"`{endpoint.backend}`: {error.detail}"
        # Observed here, too: the probe that follows may be late, and what is broken must be known.
        self._fleet.observe(endpoint, state)
        return None
