"""Stores a worker's sampled decisions of guards in the cache Redis, where operators read them."""

import contextlib
from typing import Final, Self

import msgspec

from sluicegate.gateway.redis.connect import PipelinedClient
from sluicegate.gateway.runtime.runtime import Runtime
from sluicegate.gateway.runtime.store import RuntimeStore
from sluicegate.gateway.tasks import PeriodicTask
from sluicegate.gateway.telemetry.guard_decisions import RecentDecisions, key_of

_INTERVAL: Final = 2.0
_KEPT: Final = b"20"
"""Seconds after which Redis deletes the decisions of a worker that was killed."""


class DecisionPublisher:
    """While its context lasts, stores `decisions` every `interval` seconds.

    After a change of the configuration document, it stores them at once, because tenants may no
    longer show their texts. `client` must stay open.
    """

    def __init__(
        self,
        *,
        client: PipelinedClient,
        worker: str,
        decisions: RecentDecisions,
        runtimes: RuntimeStore,
        interval: float = _INTERVAL,
    ) -> None:
        self._client = client
        self._key = key_of(worker)
        self._decisions = decisions
        self._seen = -1
        self._encoded = b""
        self._storing = PeriodicTask(
            self._store, interval=interval, failure="sampled decisions could not be stored"
        )
        runtimes.on_swap(self._follow)
        self._follow(runtimes.current)

    async def __aenter__(self) -> Self:
        await self._storing.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._storing.__aexit__(*exc_info)
        with contextlib.suppress(OSError):
            await self._client.execute([(b"DEL", self._key)])

    def _follow(self, runtime: Runtime) -> None:
        document = runtime.document
        self._decisions.follow(document.guards, document.decisions.texts)
        self._storing.wake()

    async def _store(self) -> None:
        if self._seen == self._decisions.changes and not self._encoded:
            return
        if self._seen != self._decisions.changes:
            self._seen = self._decisions.changes
            kept = self._decisions.statistics()
            self._encoded = msgspec.msgpack.encode(kept) if kept else b""
        command = (b"SET", self._key, self._encoded, b"EX", _KEPT)
        with contextlib.suppress(OSError):  # the worker's readiness says so
            await self._client.execute([command if self._encoded else (b"DEL", self._key)])
