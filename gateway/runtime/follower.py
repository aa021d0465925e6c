"""Keeps a worker on the published configuration: polls, prepares, swaps and acknowledges."""

import asyncio
import contextlib
import hashlib
import logging
import random
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Self

import msgspec
from redis.asyncio import Redis

from gateway.config.load import explain, load_folder, load_sources
from gateway.errors import ConfigurationError, DependencyUnavailable, GatewayError
from gateway.runtime.control import Control, Published, Topic, Versions
from gateway.runtime.recovery import NOTHING_RECORDED, Recovery
from gateway.runtime.runtime import NO_EPOCHS, Runtime, compile_runtime
from gateway.runtime.store import RuntimeStore
from gateway.settings import Settings
from gateway.tasks import PeriodicTask

_log = logging.getLogger(__name__)
_NEVER = Versions(config=-1, epochs=-1, accounts=-1, drains=-1)


def identity(settings: Settings) -> str:
    """Return the worker's name among those of every gateway that shares the Redis."""
    folder = str(settings.data_dir.absolute()).encode()
    place = hashlib.blake2b(folder, digest_size=3).hexdigest()
    return f"{socket.gethostname()}:{place}:{settings.worker}"


async def first_runtime(
    redis: Redis, settings: Settings, recovery: Recovery = NOTHING_RECORDED
) -> Runtime:
    """Return the published runtime, or that of the configuration folder where there is none.

    Where the state Redis is away or lost what was published, `recovery` knows it.

    Raises:
        ConfigurationError: nothing valid is published, and the folder is not valid either.
    """
    control = Control(redis)
    epochs: Mapping[str, int] = NO_EPOCHS
    # A lineage of its own until the epochs are read.
    lineage = secrets.token_hex(8)
    with contextlib.suppress(DependencyUnavailable):
        await recovery.reconcile()
    try:
        # In this order: a loss between the two must not leave old names to lost epochs.
        epochs, lineage = await control.epochs(), await control.lineage()
    except DependencyUnavailable as error:
        _log.warning("the state Redis is not used", extra={"reason": str(error)})
    try:
        published = await _first_published(control, recovery)
        if published is not None:
            return await _compile(published, epochs, lineage, settings)
    except (DependencyUnavailable, ConfigurationError) as error:
        _log.warning("the published configuration is not used", extra={"reason": str(error)})
    # Generation 0 is served until one is published.
    document = await asyncio.to_thread(load_folder, settings.config, placement=settings.placement)
    return compile_runtime(document, 0, epochs, lineage)


async def _first_published(control: Control, recovery: Recovery) -> Published | None:
    """Return the published document, from the ledger where Redis is away."""
    try:
        return await control.active()
    except DependencyUnavailable:
        return await recovery.published()


class RuntimeFollower:
    """Follows the state Redis while it is entered; without Redis nothing changes.

    `report` makes the JSON that goes with each heartbeat. `accounts_changed` is awaited when
    tenants or keys changed, before that is acknowledged. `models_changed` is called with the newest
    version of the models, and acknowledges it itself. `drains_changed` is called with the drained
    backends. `recovery` restores what a Redis has lost that was seen here; until it has, documents
    and drained backends stay as they are.
    """

    def __init__(
        self,
        *,
        store: RuntimeStore,
        redis: Redis,
        settings: Settings,
        report: Callable[[], bytes] = lambda: b"{}",
        accounts_changed: Callable[[], Awaitable[None]] | None = None,
        models_changed: Callable[[int], None] = lambda _: None,
        drains_changed: Callable[[frozenset[str]], None] = lambda _: None,
        recovery: Recovery = NOTHING_RECORDED,
        poll: float = 1.0,
    ) -> None:
        self._store = store
        self._control = Control(redis)
        self._settings = settings
        self._worker = identity(settings)
        self._report = report
        self._accounts_changed = accounts_changed
        self._models_changed = models_changed
        self._drains_changed = drains_changed
        self._recovery = recovery
        self._is_behind = False
        """Whether the versions in Redis are older than those seen here."""
        self._poll = poll
        self._seen = _NEVER
        self._stopping = asyncio.Event()
        self._reached = True
        self.reloads = self.failed_reloads = 0
        """Documents that were taken, and that were not."""
        self._polling = PeriodicTask(
            self._step, interval=poll, failure="a step of following the configuration failed"
        )
        self._listening: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        try:
            await self._step()
        except Exception:  # noqa: BLE001 - what was read at first is served, and later steps follow
            _log.exception("the first step of following the configuration failed")
        if not self._reached:
            with contextlib.suppress(DependencyUnavailable):
                self._drains_changed(await self._recovery.drained())
        self._listening = asyncio.get_running_loop().create_task(self._listen())
        await self._polling.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._stopping.set()
        await self._polling.__aexit__(*exc_info)
        # No cancelling: redis-py swallows it now and then.
        if self._listening is not None:
            await asyncio.wait([self._listening])
        with contextlib.suppress(DependencyUnavailable):
            await self._control.leave(self._worker)

    @property
    def is_reached(self) -> bool:
        """Whether the state Redis answered the last command."""
        return self._reached

    async def _listen(self) -> None:
        while not self._stopping.is_set():
            try:
                async with self._control.changes() as receive_change:
                    while not self._stopping.is_set():
                        if await receive_change():
                            self._polling.wake()
            except DependencyUnavailable:
                pause = self._poll * random.uniform(0.5, 1.5)  # noqa: S311 - spreads reconnections
                with contextlib.suppress(TimeoutError):  # meanwhile the poll finds out
                    await asyncio.wait_for(self._stopping.wait(), pause)

    async def _step(self) -> None:
        try:
            await self._control.heartbeat(self._worker, self._report())
            newest = await self._recovered(await self._versions())
            if _configuration(newest) != _configuration(self._seen):
                await self._take_config(newest)
            self._models_changed(newest.models)
            if newest.drains != self._seen.drains:
                self._drains_changed(await self._control.drained())
                await self._control.acknowledge(self._worker, Topic.DRAINS, newest.drains)
            taken = newest
            if newest.accounts != self._seen.accounts and not await self._take_accounts(newest):
                # Retried with the next step, until the keys are read.
                taken = msgspec.structs.replace(newest, accounts=self._seen.accounts)
            self._seen = taken
            self._connected(True)
        except DependencyUnavailable:
            self._connected(False)

    async def _versions(self) -> Versions:
        """Return the versions; start another lineage where Redis has lost purges."""
        newest = await self._control.versions()
        if newest.epochs < self._seen.epochs:
            await self._control.start_lineage(self._seen.epochs)
            newest = await self._control.versions()
        return newest

    async def _recovered(self, newest: Versions) -> Versions:
        """Return the versions, restored where Redis had lost them, or those seen before."""
        is_first = self._seen is _NEVER
        self._is_behind = not is_first and _is_behind(newest, self._seen)
        if not (is_first or self._is_behind):
            return newest
        try:
            await self._recovery.reconcile()
            newest = await self._control.versions()
        except DependencyUnavailable:
            if is_first:
                return newest
            # The published document cannot be read: the current one stays.
            return msgspec.structs.replace(
                newest, config=self._seen.config, drains=self._seen.drains
            )
        self._is_behind = False
        return newest

    def _connected(self, reached: bool) -> None:  # noqa: FBT001
        if self._reached and not reached:
            _log.warning("the state Redis cannot be reached; the configuration stays as it is")
        elif reached and not self._reached:
            _log.info("the state Redis is reached again")
        self._reached = reached

    async def _take_config(self, newest: Versions) -> None:
        published = await self._control.active()
        epochs, lineage = await self._control.epochs(), await self._control.lineage()
        current = self._store.current
        generation = current.generation if published is None else published.generation
        outcome = purged = "ok"
        if published is not None and self._is_behind:
            generation = current.generation
        elif published is not None and generation != current.generation:
            outcome = await self._swap(_compile(published, epochs, lineage, self._settings))
            self.reloads += outcome == "ok"
            self.failed_reloads += outcome != "ok"
        current = self._store.current
        # Also where the document was refused: a purge is not undone by that.
        if current.lineage != lineage or dict(current.epochs) != epochs:
            purged = await self._swap(_with_epochs(current, epochs, lineage))
        await self._control.acknowledge(self._worker, Topic.CONFIG, generation, outcome)
        await self._control.acknowledge(self._worker, Topic.EPOCHS, newest.epochs, purged)

    async def _swap(self, preparing: Awaitable[Runtime]) -> str:
        """Swap in the runtime being prepared; return `ok`, or why that failed."""
        try:
            await self._store.swap(await preparing)
        except ConfigurationError as error:
            return explain(error)
        except GatewayError as error:
            return error.detail
        except Exception as error:  # noqa: BLE001 - a hook failed: the outcome says so, and this worker stays as it is
            _log.exception("a new configuration was not applied")
            return f"the worker failed to take it: {type(error).__name__}"
        return "ok"

    async def _take_accounts(self, newest: Versions) -> bool:
        """Reload the keys and acknowledge that; return whether they were read."""
        outcome = "ok"
        try:
            if self._accounts_changed is not None:
                await self._accounts_changed()
        except GatewayError as error:
            outcome = error.detail
        await self._control.acknowledge(self._worker, Topic.ACCOUNTS, newest.accounts, outcome)
        return outcome == "ok"


def _is_behind(newest: Versions, seen: Versions) -> bool:
    return newest.config < seen.config or newest.drains < seen.drains


def _configuration(versions: Versions) -> tuple[int, int, str]:
    return versions.config, versions.epochs, versions.lineage


async def _compile(
    published: Published, epochs: Mapping[str, int], lineage: str, settings: Settings
) -> Runtime:
    document = await asyncio.to_thread(
        load_sources, published.sources, placement=settings.placement
    )
    return compile_runtime(document, published.generation, epochs, lineage, published.time)


async def _with_epochs(runtime: Runtime, epochs: dict[str, int], lineage: str) -> Runtime:
    return msgspec.structs.replace(runtime, epochs=epochs, lineage=lineage)
