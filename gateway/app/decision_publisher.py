"""Stores a worker's sampled decisions of guards in the cache Redis, where operators read them."""

import contextlib
import logging
from typing import Final, Self

import msgspec

from sluicegate.gateway.redis.connect import PipelinedClient
from sluicegate.gateway.redis.pipeline import Command
from sluicegate.gateway.runtime.runtime import Runtime
from sluicegate.gateway.runtime.store import RuntimeStore
from sluicegate.gateway.tasks import PeriodicTask
from sluicegate.gateway.telemetry.guard_decisions import RecentDecisions, key_of

_INTERVAL: Final = 2.0
_KEPT: Final = b"20"
"""Seconds after which Redis deletes the decisions of a worker that was killed."""
_log = logging.getLogger(__name__)


class DecisionPublisher:
    """While its context lasts, stores changed `decisions` every `interval` seconds.

    After a change of the configuration document, it stores them at once, because tenants may no
    longer show their texts. If the document does not use Redis for results, it stores nothing.
    Closes `client` on exit.
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
        self._is_used = True
        self._is_known = False
        """Whether Redis has exactly what was stored. If not, all is deleted and stored again."""
        self._is_refused = False
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
        await self._client.aclose()

    def _follow(self, runtime: Runtime) -> None:
        document = runtime.document
        self._is_used = document.cache.redis_enabled
        self._decisions.follow(document.guards, document.decisions.texts)
        self._storing.wake()

    async def _store(self) -> None:
        changed, expire = self._decisions.changed, (b"EXPIRE", self._key, _KEPT)
        with contextlib.suppress(OSError):  # the worker's readiness says so
            if not self._is_known:
                await self._client.execute([(b"DEL", self._key)])
                changed.update(self._decisions.guards)
            self._is_known = False
            if not self._is_used:
                return
            for name in [*changed]:
                # One after the other, because encoding the texts of many guards takes long.
                changed.discard(name)
                replies = await self._client.execute([self._command(name), expire])
                if isinstance(replies[0], Exception):
                    self._refused(replies[0])
                    return
            (exists,) = await self._client.execute([expire])
            self._is_known = exists == 1 or not any(map(self._decisions.of, self._decisions.guards))
            self._is_refused = False

    def _command(self, guard: str) -> Command:
        kept = self._decisions.of(guard)
        if kept is None:
            return (b"HDEL", self._key, guard.encode())
        return (b"HSET", self._key, guard.encode(), msgspec.msgpack.encode(kept))

    def _refused(self, reply: Exception) -> None:
        if not self._is_refused:
            _log.error("Redis refuses sampled decisions of guards", extra={"reason": str(reply)})
        self._is_refused = True
