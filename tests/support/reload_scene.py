"""Puts documents one after the other on a running worker, and asks it things in between."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
import yaml
from redis.asyncio import Redis

from sluicegate.gateway.app.backends import BackendAccess
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.operations.publishing import Publisher
from sluicegate.gateway.routing.fleet import Fleet
from sluicegate.gateway.routing.statistics import EndpointStatistics
from sluicegate.gateway.types import ServedModel
from testing.raw_http import KEY, Connection, Response, post
from testing.stub_backend import StubBackend, stub_model
from tests.support.table_resolver import TableResolver
from tests.support.worker import RunningWorker

OTHER_KEY = "sk-a-key-of-another-tenant"
LONG = 60.0
"""Seconds that no case takes: what is to end sooner ends because of the document."""

T = TypeVar("T")
Section = dict[str, Any]
ReloadCase = Callable[["ReloadScene"], Awaitable[None]]


def case_of(cases: dict[str, ReloadCase], field: str) -> Callable[[ReloadCase], ReloadCase]:
    """Note in `cases` that a function changes `field` on a running worker and finds the effect."""

    def note(function: ReloadCase) -> ReloadCase:
        cases[field] = function
        return function

    return note


class ReloadScene:
    """A running worker with a backend in each of two regions, which serve a model of the scene's.

    The backends and the model are new in every scene: nothing is known of them yet.
    """

    def __init__(
        self,
        *,
        name: str,
        worker: RunningWorker,
        connection: Connection,
        publisher: Publisher,
        ledger: Ledger,
        redis: Redis,
        resolver: TableResolver,
    ) -> None:
        self.name = name
        self.worker = worker
        self.publisher = publisher
        self.ledger = ledger
        self.redis = redis
        self.resolver = resolver
        models = [stub_model(name)]
        self.eu = StubBackend(backend_id=f"{name}-eu", region="eu", models=models)
        self.us = StubBackend(backend_id=f"{name}-us", region="us", models=models)
        self._connection = connection

    @property
    def backends(self) -> BackendAccess:
        """What the worker calls backends with."""
        return self.worker.parts.backends

    @property
    def fleet(self) -> Fleet:
        """The worker's fleet."""
        return self.backends.fleet

    def model(self) -> ServedModel:
        """Return the model as the worker's fleet knows it."""
        found = self.fleet.model(self.name)
        assert found is not None
        return found

    def statistics(self, stub: StubBackend) -> EndpointStatistics:
        """Return what the fleet knows of a backend."""
        return next(e for e in self.fleet.statistics() if e.backend == stub.backend_id)

    def backend(self, stub: StubBackend, **fields: Any) -> Section:
        """Return the entry of a backend."""
        return {"id": stub.backend_id, "url": stub.url} | fields

    def regions(self, **fields: Any) -> list[Section]:
        """Return both regions; `fields` are of the pool of the second."""
        return [
            {"name": "eu", "pools": [{"backends": [self.backend(self.eu)]}]},
            {"name": "us", "pools": [{"backends": [self.backend(self.us)]} | fields]},
        ]

    def text(self, *, entry: Section | None = None, **sections: Any) -> str:
        """Return a document with these sections, and `entry` for the model."""
        routing = {
            "probe_interval": 0.05,
            "probe_timeout": LONG,
            "attempt_timeout": LONG,
            "eject_after": 1_000,
            "eject_share": 1.0,
            "slow_start": 0.001,
            # On a busy machine round trips are long: work must not leave the first region by that.
            "spill_after": LONG,
            "overflow_after": LONG,
        }
        base = {
            "regions": self.regions(),
            "models": {self.name: {"planned": True} | (entry or {})},
            "deadline": {"default": LONG, "maximum": LONG},
            "limits": {"tenant": []},
        }
        merged = base | sections | {"routing": routing | sections.get("routing", {})}
        return yaml.safe_dump(merged)

    async def put(self, **sections: Any) -> None:
        """Publish a document as `PUT /admin/config` does; it is live in the worker afterwards."""
        change = await self.publisher.put(self.text(**sections), if_match="", author="test")
        assert change.live, change.workers
        assert change.workers

    async def both(
        self, before: Section, after: Section, observe: Callable[[], Awaitable[T]]
    ) -> tuple[T, T]:
        """Return what is observed under one document, and then under the other."""
        await self.put(**before)
        first = await observe()
        await self.put(**after)
        return first, await observe()

    async def ask(
        self, *texts: str, key: str = KEY, headers: dict[str, str] | None = None
    ) -> Response:
        """Have texts classified by the scene's model."""
        await self.send(self._connection, *texts, key=key, headers=headers)
        return await self._connection.response()

    async def send(
        self,
        connection: Connection,
        *texts: str,
        key: str = KEY,
        headers: dict[str, str] | None = None,
    ) -> None:
        """Ask, and leave the answer to come on `connection`."""
        body = msgspec.json.encode({"model": self.name, "input": texts})
        await connection.send(post("/v1/classify", body, key=key, headers=headers))

    async def exchange(self, request: bytes) -> Response:
        """Send a whole request, and return the answer."""
        await self._connection.send(request)
        return await self._connection.response()

    async def status(self, *texts: str) -> int:
        """Ask, and return the status of the answer."""
        return (await self.ask(*texts)).status

    async def hits(self, text: str, *, key: str = KEY) -> int:
        """Ask once; return how many items were answered from the cache."""
        response = await self.ask(text, key=key)
        assert response.status == 200, response.body
        found: int = response.json()["usage"]["hit"]
        return found

    async def hits_again(self, text: str) -> int:
        """Ask twice; return how many items of the second request were in the cache."""
        await self.ask(text)
        return await self.hits(text)

    async def ttls(self) -> dict[bytes, int]:
        """Return the milliseconds that each key in Redis has left, of those that expire."""
        names: list[bytes] = await self.redis.keys("*")  # type: ignore[assignment]
        return {name: ttl for name in names if (ttl := await self.redis.pttl(name)) > 0}
