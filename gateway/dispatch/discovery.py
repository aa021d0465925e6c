"""Keeps the endpoints that stand for a DNS name as many as the name has addresses."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from random import Random
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import msgspec

from gateway.config.document import RoutingEntry
from gateway.tasks import TaskScope
from gateway.types import BackendId, Endpoint
from gateway.upstream.resolving import Addresses, ResolutionFailed, Resolver

_log = logging.getLogger(__name__)
# A name that leads to more is a mistake, or wants a balancer of its own.
MAX_ADDRESSES = 256
# Seconds after which a name is asked for again that was never found.
SOON = 1.0
# Intervals vary by this share, so that gateways do not ask in step.
JITTER = 0.2


class DiscoveryStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Names that are followed, those of them whose last look-up failed, and what they lead to."""

    names: int
    failing: int
    addresses: int
    failures: int
    """Look-ups that failed, since the start."""


class _Name:
    """What is known of one name."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.addresses: Addresses = ()
        self.is_failing = False

    def take(self, found: Addresses) -> bool:
        """Keep what was found; return whether it is something else."""
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
        """Keep what is known, and say so once."""
        if not self.is_failing:
            extra = {"host": self.host, "reason": reason, "addresses": len(self.addresses)}
            _log.warning("a name is not resolved; its addresses stay", extra=extra)
        self.is_failing = True


class Discovery:
    """An async context manager that follows names; `changed` is awaited when one leads elsewhere.

    Endpoints that left are given no more work; what they have is finished.
    """

    def __init__(
        self, *, resolver: Resolver, random: Random, changed: Callable[[], Awaitable[None]]
    ) -> None:
        self._resolver = resolver
        self._random = random
        self._changed = changed
        self._tasks = TaskScope()
        self._names: dict[str, _Name] = {}
        # Names of a configuration that is not in force yet.
        self._prepared: dict[str, _Name] = {}
        self._following: dict[str, asyncio.Task[None]] = {}
        self._has_begun = False
        self._failures = 0
        self._routing = RoutingEntry()

    async def __aenter__(self) -> Self:
        await self._ask_all(self._names.values(), self._routing.dns_timeout)
        self._has_begun = True
        self._follow()
        await self._changed()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._has_begun = False
        await self._tasks.__aexit__(kind, error, trace)

    async def prepare(self, endpoints: Sequence[Endpoint], routing: RoutingEntry) -> None:
        """Look names up that are new, so that `expand` knows them; failures are no obstacle."""
        new = {host: _Name(host) for host in _hosts(endpoints) if host not in self._names}
        await self._ask_all(new.values(), routing.dns_timeout)
        self._prepared = new

    def configure(self, endpoints: Sequence[Endpoint], routing: RoutingEntry) -> None:
        """Follow the names of these `endpoints` from now on, and no others."""
        if routing.dns_interval != self._routing.dns_interval:
            # Each would wait for the end of the interval before.
            while self._following:
                self._following.popitem()[1].cancel()
        self._routing = routing
        self._names = {host: self._known(host) or _Name(host) for host in _hosts(endpoints)}
        self._follow()

    def expand(self, endpoints: Sequence[Endpoint]) -> tuple[Endpoint, ...]:
        """Return `endpoints` with those of a name in the place of what stands for it."""
        found: list[Endpoint] = []
        for endpoint in endpoints:
            if not endpoint.dns:
                found.append(endpoint)
            elif (name := self._known(_host(endpoint))) is not None:
                found += [at(endpoint, address) for address in name.addresses]
        return tuple(found)

    def statistics(self) -> DiscoveryStatistics:
        """Return what is followed now."""
        names = self._names.values()
        return DiscoveryStatistics(
            names=len(names),
            failing=sum(name.is_failing for name in names),
            addresses=sum(len(name.addresses) for name in names),
            failures=self._failures,
        )

    def _known(self, host: str) -> _Name | None:
        return self._names.get(host) or self._prepared.get(host)

    def _follow(self) -> None:
        if not self._has_begun:
            return
        for host in [*self._following]:
            if host not in self._names:
                self._following.pop(host).cancel()
        for host, name in self._names.items():
            if host not in self._following:
                self._following[host] = self._tasks.create_task(self._watch(name))

    async def _watch(self, name: _Name) -> None:
        while True:
            interval = self._routing.dns_interval
            if not name.addresses:
                interval = min(interval, SOON)
            await asyncio.sleep(interval * self._random.uniform(1 - JITTER, 1 + JITTER))
            if await self._ask(name, self._routing.dns_timeout):
                await self._changed()

    async def _ask_all(self, names: Iterable[_Name], within: float) -> None:
        await asyncio.gather(*(self._ask(name, within) for name in names))

    async def _ask(self, name: _Name, within: float) -> bool:
        """Look `name` up; return whether it leads elsewhere."""
        try:
            async with asyncio.timeout(within):
                found = await self._resolver.addresses(name.host)
        except TimeoutError:
            reason = f"no answer within {within:g} s"
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
