"""Records the published configuration in the ledger, and restores it if Redis loses it.

The ledger is the database of accounts and usage.
"""

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final

import msgspec
from typing_extensions import override

from sluicegate.gateway.errors import DependencyUnavailable, GatewayError
from sluicegate.gateway.runtime.control_values import Published
from sluicegate.gateway.tasks import PeriodicTask

if TYPE_CHECKING:  # see `gateway.operations.context`
    from sluicegate.gateway.ledger.published import PublishedState, RecordedState
    from sluicegate.gateway.runtime.control import Control

_log = logging.getLogger(__name__)
_INTERVAL = 1.0
_decode = msgspec.json.Decoder(Published).decode


class Recovery:
    """Restores the published configuration after Redis has lost it.

    This base class restores nothing. Every method may raise `DependencyUnavailable` if Redis or the
    record cannot be reached.
    """

    async def reconcile(self) -> None:
        """Compare the state in Redis with the recorded state.

        The newer state replaces the older one.
        """

    async def published(self) -> Published | None:
        """Return the newest recorded document."""
        return None

    async def drained(self) -> frozenset[str]:
        """Return the ids of the backends that are recorded as drained."""
        return frozenset()


NOTHING_RECORDED: Final = Recovery()


class LedgerRecovery(Recovery):
    """Restores the published state of one gateway region from the ledger.

    Any process may try a recovery at any time. A script in Redis lets only the first process
    restore the state. Generations never decrease.
    """

    def __init__(self, *, control: "Control", record: "PublishedState", region: str) -> None:
        self._control = control
        self._record = record
        self._region = region
        self._lock = asyncio.Lock()
        self._equal: tuple[int, int] | None = None
        """The generation of the document and the version of the drains at the last time when Redis
        and the ledger agreed."""

    @override
    async def reconcile(self) -> None:
        """Compare Redis with the ledger. The newer state replaces the older state.

        If both are unchanged since they last agreed, the comparison costs one Redis command.
        """
        async with self._lock:
            versions = await self._control.versions()
            if (versions.config, versions.drains) == self._equal:
                return
            recorded = await asyncio.to_thread(self._record.newest, self._region)
            if versions.config > recorded.generation:
                await self._keep_documents(recorded.generation)
            if versions.drains > recorded.drains:
                drained = await self._control.drained()
                await asyncio.to_thread(
                    self._record.keep_drained, self._region, versions.drains, drained
                )
            if versions.config < recorded.generation or versions.drains < recorded.drains:
                await self._restore(recorded)
            self._equal = (
                max(versions.config, recorded.generation),
                max(versions.drains, recorded.drains),
            )

    @override
    async def published(self) -> Published | None:
        """Return the newest document in the ledger."""
        found = await self._documents()
        return found[0] if found else None

    @override
    async def drained(self) -> frozenset[str]:
        """Return the ids of the backends that the ledger records as drained."""
        return (await asyncio.to_thread(self._record.newest, self._region)).drained

    async def follow(self, stop: asyncio.Event) -> None:
        """Call `reconcile` immediately, and then every second until `stop` is set.

        Failures are ignored.
        """
        polling = PeriodicTask(
            self._try_to_reconcile,
            interval=_INTERVAL,
            failure="the state Redis could not be compared with the ledger; trying again",
        )
        polling.wake()
        async with polling:
            await stop.wait()

    async def _try_to_reconcile(self) -> None:
        with contextlib.suppress(GatewayError):  # readiness reports what cannot be reached
            await self.reconcile()

    async def _restore(self, recorded: "RecordedState") -> None:
        history = await self._documents()
        if await self._control.restore_state(history, recorded.drains, recorded.drained):
            _log.warning(
                "the state Redis had lost the published configuration; it was restored",
                extra={"generation": recorded.generation, "drained": len(recorded.drained)},
            )

    async def _keep_documents(self, after: int) -> None:
        """Record documents that were published after generation `after`."""
        found = {entry.generation: entry for entry in await self._control.history()}
        active = await self._control.active()
        if active is not None:
            found[active.generation] = active
        new = {
            generation: msgspec.json.encode(entry).decode()
            for generation, entry in found.items()
            if generation > after
        }
        if new:
            await asyncio.to_thread(self._record.keep_documents, self._region, new)

    async def _documents(self) -> list[Published]:
        texts = await asyncio.to_thread(self._record.documents, self._region)
        try:
            return [_decode(text) for text in texts]
        except msgspec.DecodeError as error:
            raise DependencyUnavailable(
                "the ledger's configuration was written by a newer version of the gateway; upgrade"
                " this gateway"
            ) from error
