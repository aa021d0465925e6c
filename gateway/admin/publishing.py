"""Validates and publishes configuration documents, and waits until workers apply them."""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from gateway.admin.model_names import explain_unknown_model, valid_model_names
from gateway.config import tree
from gateway.config.document import Document, PriceConfig
from gateway.config.load import check_memory, check_models, digest, explain, load_sources
from gateway.config.mounts import check_mounts, mounted_files
from gateway.config.sources import DocumentSource, Sources, read_folder
from gateway.errors import (
    ConfigurationError,
    Conflict,
    DependencyUnavailable,
    GatewayError,
    NotFound,
    PreconditionFailed,
)
from gateway.ledger.ledger import Ledger
from gateway.runtime.control import Control, Published, Topic
from gateway.runtime.recovery import NOTHING_RECORDED, Recovery
from gateway.settings import Settings

_log = logging.getLogger(__name__)
_POSTED = "document.yaml"
_RETRY = 1.0
_SECOND = 1_000_000_000
_TRIES = 3


class PublishedChange(msgspec.Struct, frozen=True, kw_only=True):
    """A published document; `live` when every worker has applied it.

    `workers` has `ok`, `pending` or the error, by worker. `notice` says why an expected change may
    be missing.
    """

    generation: int
    digest: str
    changed: bool
    live: bool
    workers: dict[str, str]
    notice: str = ""


class CheckedDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A document that would be accepted."""

    valid: bool = True
    digest: str


class Publisher:
    """Publishes documents; a refused document changes nothing.

    `clock` is the wall clock. A change waits up to `workers_timeout` seconds for the workers.
    `recovery` runs first: it publishes again what the state Redis has lost.
    """

    def __init__(
        self,
        *,
        control: Control,
        ledger: Ledger,
        settings: Settings,
        clock: Callable[[], float],
        recovery: Recovery = NOTHING_RECORDED,
        workers_timeout: float = 5.0,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._control = control
        self._ledger = ledger
        self._settings = settings
        self._clock = clock
        self._recovery = recovery
        self._workers_timeout = workers_timeout
        self._chance = chance
        self._price_lock = asyncio.Lock()
        self._pending_prices: Published | None = None
        """The published document whose prices are not in the ledger yet."""
        self._unconfirmed: Published | None = None
        """The document whose publication Redis has not confirmed."""
        self._replaced_prices: tuple[PriceConfig, ...] = ()
        """Prices of documents replaced since the ledger was last updated."""

    async def start(self, stop: asyncio.Event) -> None:
        """Publish the folder where nothing is published, or it was edited since; then return.

        A document that was put by hand stays active until the folder changes. Waits for Redis,
        until `stop`.
        """
        while not stop.is_set():
            try:
                await self._start()
            except (DependencyUnavailable, Conflict):  # or another gateway was first
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), _RETRY * (1.5 - self._chance()))
            except ConfigurationError as error:
                _log.error("the folder is not published", extra={"reason": explain(error)})
                return
            else:
                return

    async def follow(self, stop: asyncio.Event) -> None:
        """Store, until `stop`, prices that the ledger could not store when they were published."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _RETRY)
                return  # the next start stores them
            async with self._price_lock:
                await self._confirm_publication()
                if self._pending_prices is not None:
                    await self._store_prices(self._pending_prices)

    async def _confirm_publication(self) -> None:
        """Store the prices of the unconfirmed document if it turns out to be active."""
        if self._unconfirmed is not None:
            with contextlib.suppress(DependencyUnavailable):
                active = await self._control.active()
                if active == self._unconfirmed:
                    self._pending_prices = active
                self._unconfirmed = None

    async def reload(self, *, author: str) -> PublishedChange:
        """Publish the configuration folder.

        Raises:
            ConfigurationError: it is not valid, or not the one that was edited; nothing changed.
        """
        tries = _TRIES
        while True:
            tries -= 1
            try:
                return await self._reload(author)
            except Conflict:  # the folder wins over whatever was published meanwhile
                if not tries:
                    raise

    async def put(self, text: str, *, if_match: str, author: str) -> PublishedChange:
        """Replace the active document with `text`, if `if_match` names its version.

        Raises:
            ConfigurationError: it is invalid, or would change the price of past usage; nothing
                changed.
            PreconditionFailed: another version is active.
        """
        sources = (DocumentSource(name=_POSTED, text=text),)
        await self._validate(sources)
        active = await self._active()
        _match(if_match, active)
        await self._check_models(sources, active)
        await self._check_change(sources, active)
        return await self._publish(active, sources, author=author, reason="put")

    async def check(self, text: str, *, if_match: str) -> CheckedDocument:
        """Validate as `put` does, without changing anything."""
        sources = (DocumentSource(name=_POSTED, text=text),)
        checked = await self._validate(sources)
        active = await self._control.active()
        _match(if_match, active)
        await self._check_models(sources, active)
        await self._check_change(sources, active)
        return CheckedDocument(digest=checked)

    async def rollback(self, generation: int | None, *, author: str) -> PublishedChange:
        """Publish an earlier generation's document again; by default the one before the active.

        Raises:
            NotFound: there is none.
        """
        active = await self._active()
        history = await self._control.history()
        target = _rollback_target(history, active, generation)
        await self._validate(target.sources)
        await self._check_change(target.sources, active)
        reason = f"rollback to generation {target.origin}"
        return await self._publish(
            active, target.sources, author=author, reason=reason, origin=target.origin
        )

    async def _reload(self, author: str) -> PublishedChange:
        folder = self._settings.config
        await asyncio.to_thread(check_mounts, folder)
        sources = await asyncio.to_thread(read_folder, folder)
        folder_digest = await self._validate(sources)
        active = await self._active()
        if active is not None and active.sources == sources:
            same = await self._wait_for_workers(active, changed=False)
            return msgspec.structs.replace(same, notice=await asyncio.to_thread(_unchanged, folder))
        await self._check_models(sources, active)
        await self._check_change(sources, active)
        return await self._publish(
            active, sources, author=author, reason="reload", folder_digest=folder_digest
        )

    async def _start(self) -> None:
        sources = await asyncio.to_thread(read_folder, self._settings.config)
        folder_digest = await self._validate(sources)
        active = await self._active()
        if active is None or active.folder_digest != folder_digest:
            if active is None:  # a new gateway may begin with nothing but defaults
                await self._check_prices(sources, active)
            else:
                await self._check_change(sources, active)
            await self._publish(
                active, sources, author="start", reason="start", folder_digest=folder_digest
            )
        elif await _document_of(active) is not None:
            # Also where a process stopped before storing them, an older version did not store
            # them, or the ledger was restored from a backup.
            await asyncio.to_thread(self._publish_prices, active)

    async def _active(self) -> Published | None:
        """Return the active document, after recovering it if the state Redis had lost it."""
        await self._recovery.reconcile()
        return await self._control.active()

    async def _validate(self, sources: Sources) -> str:
        """Validate `sources`, with this gateway's placement too, and return their digest."""
        await asyncio.to_thread(load_sources, sources, placement=self._settings.placement)
        await asyncio.to_thread(check_memory, sources, self._settings.memory_limit_bytes)
        return await asyncio.to_thread(lambda: digest(load_sources(sources)))

    async def _check_models(self, sources: Sources, active: Published | None) -> None:
        """Validate the model names in `sources`; a start and a rollback skip this.

        Raises:
            ConfigurationError: one is neither served, nor named in what is active, nor planned.
        """
        names = await valid_model_names(self._control, await _document_of(active))
        if names is not None:
            explain = partial(explain_unknown_model, allowed=names)
            await asyncio.to_thread(check_models, sources, names, explain)

    async def _check_change(self, sources: Sources, active: Published | None) -> None:
        """Check that `sources` are not empty and keep the price of past usage.

        Raises:
            ConfigurationError: it would change what must not.
            DependencyUnavailable: the ledger is down, and the prices would change.
        """
        parsed = [await asyncio.to_thread(tree.parse, source) for source in sources]
        if not any(one.values for one in parsed):
            raise ConfigurationError(
                "the document is empty: it would remove every region, model, limit and price"
            )
        await self._check_prices(sources, active)

    async def _check_prices(self, sources: Sources, active: Published | None) -> None:
        prices = (await asyncio.to_thread(load_sources, sources)).prices
        try:
            await asyncio.to_thread(self._ledger.prices.check, prices)
        except DependencyUnavailable:
            former = await _document_of(active)
            if former is None or former.prices != prices:
                raise

    async def _publish(
        self,
        active: Published | None,
        sources: Sources,
        *,
        author: str,
        reason: str,
        folder_digest: str = "",
        origin: int = 0,
    ) -> PublishedChange:
        published_digest = await asyncio.to_thread(lambda: digest(load_sources(sources)))
        replaced = await _document_of(active)
        generation = 1 if active is None else active.generation + 1
        former_digest = "" if active is None else active.folder_digest
        published = Published(
            generation=generation,
            origin=origin or generation,
            digest=published_digest,
            sources=tuple(sources),
            author=author,
            reason=reason,
            time=self._clock(),
            folder_digest=folder_digest or former_digest,
        )
        # First: no change without an entry in the audit log.
        await asyncio.to_thread(self._audit, published, "config.publish")
        async with self._price_lock:
            if replaced is not None:
                self._replaced_prices += replaced.prices
            await self._activate(published)
            await self._store_prices(published)
        with contextlib.suppress(GatewayError):  # `Recovery.follow` tries again
            await self._recovery.reconcile()
        return await self._wait_for_workers(published, changed=True)

    async def _activate(self, published: Published) -> None:
        """Make `published` active."""
        outcome = "failed"
        try:
            if await self._control.publish(published):
                return
            raise Conflict("another document was published meanwhile; look at it and try again")
        except GatewayError as error:
            if isinstance(error, DependencyUnavailable):  # it may be active, and the reply lost
                outcome, self._unconfirmed = "unanswered", published
            with contextlib.suppress(GatewayError):
                await asyncio.to_thread(self._audit, published, f"config.publish.{outcome}")
            raise

    async def _store_prices(self, published: Published) -> None:
        """Store the prices of `published` in the ledger, now or in `follow`."""
        try:
            await asyncio.to_thread(self._publish_prices, published, former=self._replaced_prices)
        except DependencyUnavailable as error:
            if self._pending_prices is None:
                _log.warning("prices are not in the ledger yet", extra={"reason": error.detail})
            self._pending_prices = published
            return
        except GatewayError as error:
            _log.error("prices are not in the ledger", extra={"reason": error.detail})
        self._pending_prices, self._replaced_prices = None, ()

    def _publish_prices(self, published: Published, *, former: Sequence[PriceConfig] = ()) -> None:
        prices, agreed = load_sources(published.sources).prices, int(published.time * _SECOND)
        self._ledger.prices.publish(prices, former=former, agreed=agreed)

    def _audit(self, published: Published, action: str) -> None:
        detail: dict[str, object] = {"digest": published.digest, "reason": published.reason}
        subject = f"generation {published.generation}"
        self._ledger.audit(published.author, action, subject, detail)

    async def _wait_for_workers(self, published: Published, *, changed: bool) -> PublishedChange:
        workers = await self._control.wait_for_workers(
            Topic.CONFIG, published.generation, within=self._workers_timeout
        )
        return PublishedChange(
            generation=published.generation,
            digest=published.digest,
            changed=changed,
            live=all(outcome == "ok" for outcome in workers.values()),
            workers=workers,
        )


async def _document_of(active: Published | None) -> Document | None:
    """Return the parsed document; `None` where there is none, or this version refuses it.

    A document that this version refuses can still be replaced.
    """
    if active is None:
        return None
    try:
        return await asyncio.to_thread(load_sources, active.sources)
    except ConfigurationError as error:
        _log.warning("the active document cannot be read", extra={"reason": explain(error)})
        return None


def _unchanged(folder: Path) -> str:
    """Return the notice for an unchanged folder with files that are mounted singly, else ""."""
    mounted = [path.name for path in mounted_files(folder)]
    if not mounted:
        return ""
    return (
        f"nothing changed since the last load; mounted as single files: `{'`, `'.join(mounted)}`:"
        " an editor that writes a new file is not seen through such a mount, so mount the folder"
    )


def etag(published: Published) -> str:
    """Return the entity tag of a published document."""
    return f'"{published.generation}-{published.digest}"'


def _match(if_match: str, active: Published | None) -> None:
    wanted = {tag.strip() for tag in if_match.split(",") if tag.strip()}
    if not wanted or (active is not None and wanted & {"*", etag(active)}):
        return
    current = "nothing" if active is None else f"`{etag(active)}`"
    raise PreconditionFailed(f"`If-Match` names another version; {current} is active")


def _rollback_target(
    history: Sequence[Published], active: Published | None, generation: int | None
) -> Published:
    """Return the entry of `history` (the newest first) to go back to."""
    if generation is not None:
        found = [entry for entry in history if entry.generation == generation]
    else:
        origin = 0 if active is None else active.origin
        found = [entry for entry in history if entry.generation == entry.origin < origin]
    if not found:
        raise NotFound("there is no such earlier document; `GET /admin/config` lists them")
    return found[0]
