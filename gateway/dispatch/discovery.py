"""Resolves DNS names of endpoints at intervals, to one endpoint for each address."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from random import Random
from typing import Annotated, Final, Self
from urllib.parse import urlsplit

import msgspec

from sluicegate.gateway.config.document import RoutingConfig
from sluicegate.gateway.tasks import TaskScope
from sluicegate.gateway.types import BackendId, Endpoint
from sluicegate.gateway.upstream.resolving import Addresses, ResolutionFailed, Resolver
from sluicegate.wire.metric_declaration import counter, gauge

_log = logging.getLogger(__name__)
# More addresses are a mistake, or need a load balancer of their own.
MAX_ADDRESSES = 256
# Seconds after which a name without addresses is resolved again.
UNRESOLVED_INTERVAL = 1.0
# Intervals vary by this share, so that gateways do not resolve in step.
JITTER = 0.2


_NAMES: Final = gauge("sluicegate_discovery_names", "DNS names of backends, summed over workers.")
_FAILING: Final = gauge("sluicegate_discovery_failing_names", "DNS names whose last lookup failed.")
_ADDRESSES: Final = gauge("sluicegate_discovery_addresses", "Resolved addresses in use.")
_FAILURES: Final = counter("sluicegate_discovery_failures_total", "Failed DNS lookups.")


class DiscoveryStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of names, of those whose last look-up failed, and of their addresses."""

    names: Annotated[int, _NAMES]
    failing: Annotated[int, _FAILING]
    addresses: Annotated[int, _ADDRESSES]
    failures: Annotated[int, _FAILURES]


class _FollowedName:
    """A name and its addresses, as last resolved."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.addresses: Addresses = ()
        self.is_failing = False

    def take(self, found: Addresses) -> bool:
        """Take the addresses of a look-up; return whether they changed."""
        if self.is_failing:
            self.is_failing = False
            _log.info("a name is resolved again", extra={"host": self.host})
        if len(found) > MAX_ADDRESSES:
            extra = {"host": self.host, "addresses": len(found), "used": MAX_ADDRESSES}
            _log.warning("a name has too many addresses", extra=extra)
        # Records come in another order each time.
        before, self.addresses = self.addresses, tuple(sorted(found))[:MAX_ADDRESSES]
        return before != self.addresses

    def fail(self, reason: str) -> None:
        """Keep the addresses after a failed look-up, and log the first of several failures."""
        if not self.is_failing:
            extra = {"host": self.host, "reason": reason, "addresses": len(self.addresses)}
            _log.warning("a name is not resolved; its addresses stay", extra=extra)
        self.is_failing = True


class Discovery:
    """Follows DNS names, as an async context manager; `changed` is awaited when addresses change.

    Endpoints of removed addresses get no more work, and finish what they have.
    """

    def __init__(
        self, *, resolver: Resolver, random: Random, changed: Callable[[], Awaitable[None]]
    ) -> None:
        self._resolver = resolver
        self._random = random
        self._changed = changed
        self._tasks = TaskScope()
        self._names: dict[str, _FollowedName] = {}
        # Names of a configuration that is not in force yet.
        self._prepared: dict[str, _FollowedName] = {}
        self._following: dict[str, asyncio.Task[None]] = {}
        self._is_running = False
        self._failures = 0
        self._routing = RoutingConfig()

    async def __aenter__(self) -> Self:
        await self._resolve_all(self._names.values(), self._routing.dns_timeout)
        self._is_running = True
        self._follow()
        await self._changed()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._is_running = False
        await self._tasks.__aexit__(None, None, None)

    async def prepare(self, endpoints: Sequence[Endpoint], routing: RoutingConfig) -> None:
        """Resolve names that are new, so that `expand` knows them; failures are not raised."""
        new = {host: _FollowedName(host) for host in _hosts(endpoints) if host not in self._names}
        await self._resolve_all(new.values(), routing.dns_timeout)
        self._prepared = new

    def configure(self, endpoints: Sequence[Endpoint], routing: RoutingConfig) -> None:
        """Follow the names of these `endpoints` from now on, and no others."""
        if routing.dns_interval != self._routing.dns_interval:
            # Each would wait for the end of the interval before.
            while self._following:
                self._following.popitem()[1].cancel()
        self._routing = routing
        self._names = {host: self._find(host) or _FollowedName(host) for host in _hosts(endpoints)}
        self._follow()

    def expand(self, endpoints: Sequence[Endpoint]) -> tuple[Endpoint, ...]:
        """Return `endpoints` with each that has a name replaced by one for each address."""
        found: list[Endpoint] = []
        for endpoint in endpoints:
            if not endpoint.dns:
                found.append(endpoint)
            elif (name := self._find(_host(endpoint))) is not None:
                found += [at(endpoint, address) for address in name.addresses]
        return tuple(found)

    def unresolved(self, endpoints: Sequence[Endpoint]) -> tuple[Endpoint, ...]:
        """Return those of `endpoints` with a name that leads to no address now."""
        return tuple(each for each in endpoints if not self.expand([each]))

    def statistics(self) -> DiscoveryStatistics:
        """Return the counts as of now."""
        names = self._names.values()
        return DiscoveryStatistics(
            names=len(names),
            failing=sum(name.is_failing for name in names),
            addresses=sum(len(name.addresses) for name in names),
            failures=self._failures,
        )

    def _find(self, host: str) -> _FollowedName | None:
        return self._names.get(host) or self._prepared.get(host)

    def _follow(self) -> None:
        if not self._is_running:
            return
        for host in [*self._following]:
            if host not in self._names:
                self._following.pop(host).cancel()
        for host, name in self._names.items():
            if host not in self._following:
                self._following[host] = self._tasks.create_task(self._watch(name))

    async def _watch(self, name: _FollowedName) -> None:
        while True:
            interval = self._routing.dns_interval
            if not name.addresses:
                interval = min(interval, UNRESOLVED_INTERVAL)
            await asyncio.sleep(interval * self._random.uniform(1 - JITTER, 1 + JITTER))
            if await self._resolve(name, self._routing.dns_timeout):
                await self._changed()

    async def _resolve_all(self, names: Iterable[_FollowedName], time_limit: float) -> None:
        await asyncio.gather(*(self._resolve(name, time_limit) for name in names))

    async def _resolve(self, name: _FollowedName, time_limit: float) -> bool:
        """Resolve `name`; return whether its addresses changed."""
        try:
            async with asyncio.timeout(time_limit):
                found = await self._resolver.addresses(name.host)
        except TimeoutError:
            reason = f"no answer within {time_limit:g} s"
        except ResolutionFailed as error:
            reason = str(error)
        else:
            return name.take(found)
        self._failures += 1
        name.fail(reason)
        return False


def at(endpoint: Endpoint, address: str) -> Endpoint:
    """Return the endpoint at one address of the name that `endpoint` stands for."""
    parts = urlsplit(endpoint.url)
    host = f"[{address}]" if ":" in address else address
    return msgspec.structs.replace(
        endpoint,
        backend=BackendId(f"{endpoint.backend}@{address}"),
        url=f"{parts.scheme}://{host}:{parts.port}",
        server_name=endpoint.server_name or _host(endpoint),
    )


def _host(endpoint: Endpoint) -> str:
    return endpoint.dns.rpartition(":")[0]


def _hosts(endpoints: Iterable[Endpoint]) -> list[str]:
    return list(dict.fromkeys(_host(endpoint) for endpoint in endpoints if endpoint.dns))
