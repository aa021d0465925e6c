"""Has every backend read its repository and follow the plans, and tells the fleet their states."""

import asyncio

from gateway.dispatch.plans import PlanFollower
from gateway.dispatch.prober import Prober
from gateway.errors import UpstreamFailed
from gateway.routing.fleet import Fleet
from gateway.types import Endpoint
from gateway.upstream.base import BackendClient, CallFailed

# Opening a model takes seconds; digesting the files of a large one may take longer.
_RELOAD_TIMEOUT = 300.0


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
            state = await self._client.reload(
                endpoint, self._plans.current, time_limit=_RELOAD_TIMEOUT
            )
        except CallFailed as error:
            return f"`{endpoint.backend}`: {error.detail}"
        # Observed here, too: the probe that follows may be late, and what is broken must be known.
        self._fleet.observe(endpoint, state)
        return None
