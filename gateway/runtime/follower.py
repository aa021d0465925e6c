"""Keeps a worker up to date with the published configuration."""

import asyncio
import contextlib
import hashlib
import logging
import math
import random
import secrets
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Self

import msgspec
from redis.asyncio import Redis

from sluicegate.gateway.config.load import explain, load_folder, load_sources
from sluicegate.gateway.errors import ConfigurationError, DependencyUnavailable, GatewayError
from sluicegate.gateway.runtime.control import Control
from sluicegate.gateway.runtime.control_values import Published, Topic, Versions
from sluicegate.gateway.runtime.recovery import NOTHING_RECORDED, Recovery
from sluicegate.gateway.runtime.runtime import NO_EPOCHS, Runtime, compile_runtime
from sluicegate.gateway.runtime.store import RuntimeStore
from sluicegate.gateway.settings import Settings
from sluicegate.gateway.tasks import PeriodicTask, pause

_log = logging.getLogger(__name__)
_HISTORIES = 100
# Seconds between two reports that are sent before their turn.
_REPORT_PAUSE = 0.2
_NEVER = Versions(config=-1, epochs=-1, accounts=-1, models=-1, drains=-1)
# The follower itself handles these topics, so they have no entry in `actions`.
_WITHOUT_ACTION = frozenset({Topic.CONFIG, Topic.EPOCHS, Topic.MODELS, Topic.DRAINS})
_NUMBERED_BY_TIME = frozenset({Topic.ACCOUNTS, Topic.MODELS})
_NO_ACTIONS: Mapping[Topic, Callable[[], Awaitable[None]]] = MappingProxyType({})


def identity(settings: Settings) -> str:
    """Return the worker's name, which is unique among all gateways that share a Redis."""
    folder = str(settings.data_dir.absolute()).encode()
    place = hashlib.blake2b(folder, digest_size=3).hexdigest()
    return f"{socket.gethostname()}:{place}:{settings.worker}"


async def first_runtime(
    redis: Redis, settings: Settings, recovery: Recovery = NOTHING_RECORDED
) -> Runtime:
    """Return the runtime (the compiled configuration) with which a worker starts.

    It comes from the published document. If Redis cannot be reached or has lost the document,
    `recovery` supplies it. If there is no valid published document, the runtime comes from the
    configuration folder.

    Raises:
        ConfigurationError: there is neither a valid published document nor a valid folder.
    """
    control = Control(redis)
    epochs: Mapping[str, int] = NO_EPOCHS
    # A new id of the history of purges, which is used until the epochs have been read.
    purge_history = secrets.token_hex(8)
    with contextlib.suppress(DependencyUnavailable):
        await recovery.reconcile()
    try:
        # The epochs are read before the id. If Redis loses its data between the two reads, the id
        # is new, so the cache keys differ from all keys before the loss.
        epochs, purge_history = await control.epochs(), await control.purge_history()
    except DependencyUnavailable as error:
        _log.warning(
            "the state Redis cannot be reached and is not used", extra={"reason": str(error)}
        )
    try:
        published = await _first_published(control, recovery)
        if published is not None:
            return await _compile(published, epochs, purge_history, settings)
    except (DependencyUnavailable, ConfigurationError) as error:
        _log.warning(
            "the published configuration cannot be used; using the folder",
            extra={"reason": str(error)},
        )
    # Until a document is published, the generation is 0.
    document = await asyncio.to_thread(load_folder, settings.config, placement=settings.placement)
    return compile_runtime(document, 0, epochs, purge_history)


async def _first_published(control: Control, recovery: Recovery) -> Published | None:
    """Return the published document. If Redis cannot be reached, get it from the ledger."""
    try:
        return await control.active()
    except DependencyUnavailable:
        return await recovery.published()


class RuntimeFollower:
    """Applies configuration changes from Redis while its context lasts.

    While Redis cannot be reached, nothing changes. The arguments are called as follows:

    - `report` returns the JSON for a heartbeat.
    - `actions` maps a topic to a function that is awaited after the topic has changed, and before
      the change is acknowledged. It must be short: a step of more than 5 s makes the worker count
      as gone. The first step takes every topic as changed, so the function also runs at the start.
      If it raises a `GatewayError`, every further step tries again.
    - `models_changed` gets the newest version of the models, and must itself acknowledge this
      version, because loading models takes long.
    - `drains_changed` gets the ids of the drained backends.

    `recovery` restores state that Redis has lost. Until the state is restored, the worker keeps its
    configuration document and its drained backends.
    """

    def __init__(
        self,
        *,
        store: RuntimeStore,
        control: Control,
        settings: Settings,
        report: Callable[[], bytes] = lambda: b"{}",
        actions: Mapping[Topic, Callable[[], Awaitable[None]]] = _NO_ACTIONS,
        models_changed: Callable[[int], None] = lambda _: None,
        drains_changed: Callable[[frozenset[str]], None] = lambda _: None,
        recovery: Recovery = NOTHING_RECORDED,
        poll: float = 1.0,
    ) -> None:
        self._store = store
        self._control = control
        self._settings = settings
        self._worker = identity(settings)
        self._report = report
        self._actions = actions
        self._models_changed = models_changed
        self._drains_changed = drains_changed
        self._recovery = recovery
        self._is_behind = False
        """Whether the versions in Redis are older than the versions that this worker has seen
        before."""
        self._poll = poll
        self._seen = _NEVER
        self._histories = deque[str](maxlen=_HISTORIES)
        """The ids of the last histories of purges."""
        self._stopping = asyncio.Event()
        self._reached = True
        self.reloads = self.failed_reloads = 0
        """How many documents were applied, and how many could not be applied."""
        self._polling = PeriodicTask(
            self._step,
            interval=poll,
            failure="the published configuration could not be followed; trying again",
        )
        self._listening: asyncio.Task[None] | None = None
        self._waking: asyncio.TimerHandle | None = None
        self._woken_at = -math.inf

    async def __aenter__(self) -> Self:
        try:
            await self._step()
        except Exception:  # noqa: BLE001 - the first runtime is served, and later steps try again
            _log.exception("the published configuration could not be followed; trying again")
        if not self._reached:
            with contextlib.suppress(DependencyUnavailable):
                self._drains_changed(await self._recovery.drained())
        self._listening = asyncio.get_running_loop().create_task(self._listen())
        await self._polling.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._stopping.set()
        if self._waking is not None:
            self._waking.cancel()
        await self._polling.__aexit__(*exc_info)
        # The task is stopped without a cancellation, because redis-py sometimes swallows one.
        if self._listening is not None:
            await asyncio.wait([self._listening])
        with contextlib.suppress(DependencyUnavailable):
            await self._control.leave(self._worker)

    def report_soon(self) -> None:
        """Send the next heartbeat, which has the worker's report, without waiting for its turn.

        Many calls at a time, as when many backends start, lead to few heartbeats.
        """
        if self._waking is None:
            loop = asyncio.get_running_loop()
            at = max(loop.time(), self._woken_at + _REPORT_PAUSE)
            self._waking = loop.call_at(at, self._wake)

    def _wake(self) -> None:
        self._waking, self._woken_at = None, asyncio.get_running_loop().time()
        self._polling.wake()

    @property
    def is_reached(self) -> bool:
        """Whether Redis responded to the last command."""
        return self._reached

    async def _listen(self) -> None:
        while not self._stopping.is_set():
            try:
                async with self._control.changes() as receive_change:
                    while not self._stopping.is_set():
                        if await receive_change():
                            self._polling.wake()
            except DependencyUnavailable:
                # Meanwhile, polling notices changes.
                seconds = self._poll * random.uniform(0.5, 1.5)  # noqa: S311 - spreads reconnections
                await pause(self._stopping, seconds)

    async def _step(self) -> None:
        try:
            lost = await self._control.heartbeat(self._worker, self._report())
            newest = await self._recovered(await self._versions())
            if self._is_behind:
                lost -= {Topic.CONFIG, Topic.DRAINS}
            await self._take(newest, lost)
            self._connected(True)
        except DependencyUnavailable:
            self._connected(False)

    async def _take(self, newest: Versions, lost: frozenset[Topic]) -> None:
        """Take what has changed, and acknowledge it. Repeat the acknowledgements in `lost`.

        The configuration, the purges and the drains of `lost` are read again first: if Redis lost
        a change and its acknowledgement, another change may have the same version.
        """
        for topic in lost & _NUMBERED_BY_TIME:
            await self._control.acknowledge_again(self._worker, topic)
        has_changed = _configuration(newest) != _configuration(self._seen)
        if has_changed or not lost.isdisjoint((Topic.CONFIG, Topic.EPOCHS)):
            await self._take_config(newest)
        self._models_changed(newest.models)
        if newest.drains != self._seen.drains or Topic.DRAINS in lost:
            self._drains_changed(await self._control.drained())
            await self._control.acknowledge(self._worker, Topic.DRAINS, newest.drains)
        taken = newest
        for topic in Topic:
            seen, version = self._seen.of(topic), newest.of(topic)
            if topic in _WITHOUT_ACTION or version == seen:
                continue
            if not await self._act(topic, version):
                taken = msgspec.structs.replace(taken, **{topic.value: seen})
        self._seen = taken

    async def _versions(self) -> Versions:
        """Return the versions in Redis. If Redis has lost purges, start a new history of purges."""
        newest = await self._control.versions()
        if newest.epochs < self._seen.epochs:
            await self._control.start_purge_history(self._seen.epochs)
            newest = await self._control.versions()
        return newest

    async def _recovered(self, newest: Versions) -> Versions:
        """Restore lost state, and return the versions.

        If restoring fails, return the versions that were seen before.
        """
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
            # Without the ledger nothing can be restored, so the current document stays in use.
            return msgspec.structs.replace(
                newest, config=self._seen.config, drains=self._seen.drains
            )
        self._is_behind = False
        return newest

    def _connected(self, reached: bool) -> None:  # noqa: FBT001
        if self._reached and not reached:
            _log.warning("the state Redis cannot be reached; the configuration stays as it is")
        elif reached and not self._reached:
            _log.info("the state Redis can be reached again")
        self._reached = reached

    async def _take_config(self, newest: Versions) -> None:
        published = await self._control.active()
        epochs, purge_history = await self._epochs()
        current = self._store.current
        generation = current.generation if published is None else published.generation
        outcome = purged = "ok"
        if published is not None and not self._is_behind and _is_other(published, current):
            outcome = await self._swap(_compile(published, epochs, purge_history, self._settings))
            self.reloads += outcome == "ok"
            self.failed_reloads += outcome != "ok"
        current = self._store.current
        # Epochs are applied even if the document was refused, because a refused document does not
        # undo a purge.
        if current.purge_history != purge_history or dict(current.epochs) != epochs:
            purged = await self._swap(_with_epochs(current, epochs, purge_history))
        if not self._is_behind:
            await self._control.acknowledge(self._worker, Topic.CONFIG, generation, outcome)
        await self._control.acknowledge(self._worker, Topic.EPOCHS, newest.epochs, purged)

    async def _epochs(self) -> tuple[dict[str, int], str]:
        """Return the cache epochs, and the id of the history of purges.

        If Redis has lost purges, start a new history first. It has also lost purges if the id is
        that of a former history.
        """
        epochs, purge_history = await self._control.epochs(), await self._control.purge_history()
        current = self._store.current
        held = current.purge_history
        if held not in self._histories:
            self._histories.append(held)
        is_lost = any(epochs.get(name, 0) < known for name, known in current.epochs.items())
        if is_lost if purge_history == held else purge_history in self._histories:
            await self._control.start_purge_history(former=purge_history)
            purge_history = await self._control.purge_history()
        return epochs, purge_history

    async def _swap(self, preparing: Awaitable[Runtime]) -> str:
        """Await the next runtime and make it current. Return `ok`, or the reason for a failure."""
        try:
            await self._store.swap(await preparing)
        except ConfigurationError as error:
            return explain(error)
        except GatewayError as error:
            return error.detail
        except Exception as error:  # noqa: BLE001 - a failed hook is reported, and the runtime stays
            _log.exception("a new configuration could not be applied")
            return f"the worker failed to apply it: {type(error).__name__}"
        return "ok"

    async def _act(self, topic: Topic, version: int) -> bool:
        """Await the topic's action and acknowledge the version. Return whether that succeeded."""
        outcome = "ok"
        try:
            if topic in self._actions:
                await self._actions[topic]()
        except GatewayError as error:
            outcome = error.detail
        await self._control.acknowledge(self._worker, topic, version, outcome)
        return outcome == "ok"


def _is_behind(newest: Versions, seen: Versions) -> bool:
    return newest.config < seen.config or newest.drains < seen.drains


def _is_other(published: Published, current: Runtime) -> bool:
    """Return whether a document is not the current one.

    If Redis has lost a document, the next one may have the same generation.
    """
    return (published.generation, published.time) != (current.generation, current.published)


def _configuration(versions: Versions) -> tuple[int, int, str]:
    return versions.config, versions.epochs, versions.purge_history


async def _compile(
    published: Published, epochs: Mapping[str, int], purge_history: str, settings: Settings
) -> Runtime:
    document = await asyncio.to_thread(
        load_sources, published.sources, placement=settings.placement
    )
    return compile_runtime(document, published.generation, epochs, purge_history, published.time)


async def _with_epochs(runtime: Runtime, epochs: dict[str, int], purge_history: str) -> Runtime:
    return msgspec.structs.replace(runtime, epochs=epochs, purge_history=purge_history)
