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
            await self._delete()
        await self._client.aclose()

    def _follow(self, runtime: Runtime) -> None:
        document = runtime.document
        self._is_used = document.cache.redis_enabled
        self._decisions.follow(document.guards, document.decisions.texts)
        self._storing.wake()

    async def _store(self) -> None:
        with contextlib.suppress(OSError):  # the worker's readiness says so
            if not self._is_used:
                await self._delete()
                return
            for name in [*self._decisions.changed]:
                # One after the other, because encoding the texts of many guards takes long.
                if not await self._is_stored(name):
                    await self._delete()  # old texts must not stay
                    return
            (exists,) = await self._client.execute([(b"EXPIRE", self._key, _KEPT)])
            if exists != 1:
                self._decisions.changed.update(self._decisions.guards)

    async def _delete(self) -> None:
        await self._client.execute([(b"DEL", self._key)])
        self._decisions.changed.update(self._decisions.guards)

    async def _is_stored(self, name: str) -> bool:
        """Store the decisions of a guard, and return whether Redis did not refuse them."""
        self._decisions.changed.discard(name)
        kept, field = self._decisions.of(name), name.encode()
        command: Command = (b"HDEL", self._key, field)
        if kept is not None:
            command = (b"HSET", self._key, field, msgspec.msgpack.encode(kept))
        try:
            replies = await self._client.execute([command, (b"EXPIRE", self._key, _KEPT)])
        except OSError:
            self._decisions.changed.add(name)
            raise
        refused = [one for one in replies if isinstance(one, Exception)]
        if refused and not self._is_refused:
            _log.error(
                "Redis refuses sampled decisions of guards", extra={"reason": str(refused[0])}
            )
        self._is_refused = bool(refused)
        return not refused
