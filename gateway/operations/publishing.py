"""Validates and publishes configuration documents, and waits until workers apply them."""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sluicegate.gateway.config.checks import labelled_models
from sluicegate.gateway.config.document import Document
from sluicegate.gateway.config.load import (
    ParsedDocument,
    check_labels,
    check_memory,
    check_models,
    check_pools,
    explain,
    load_sources,
    parse_sources,
)
from sluicegate.gateway.config.mounts import check_mounts, mounted_files
from sluicegate.gateway.config.sources import DocumentSource, Sources, read_folder
from sluicegate.gateway.config.spelling import closest
from sluicegate.gateway.errors import (
    ConfigurationError,
    Conflict,
    DependencyUnavailable,
    GatewayError,
    PermissionDenied,
)
from sluicegate.gateway.operations.document_difference import (
    DocumentDifference,
    describe_difference,
)
from sluicegate.gateway.operations.fleet_view import reported_backends
from sluicegate.gateway.operations.generations import check_match, rollback_target
from sluicegate.gateway.operations.guard_recounts import Recounts, recount_guards
from sluicegate.gateway.operations.model_names import explain_unknown_model, valid_model_names
from sluicegate.gateway.operations.price_publishing import PricePublisher
from sluicegate.gateway.runtime.control_values import Published, Topic
from sluicegate.gateway.runtime.recovery import NOTHING_RECORDED, Recovery
from sluicegate.gateway.settings import Settings
from sluicegate.gateway.tasks import pause

if TYPE_CHECKING:  # see `gateway.operations.context`
    from sluicegate.gateway.ledger.ledger import Ledger
    from sluicegate.gateway.redis.connect import PipelinedClient
    from sluicegate.gateway.runtime.control import Control

_log = logging.getLogger(__name__)
_POSTED = "document.yaml"
_RETRY = 1.0
_TRIES = 3
# A document's time is at least this many seconds later than the time of the document before it,
# even if machines' clocks differ. Backends use the document with the latest time.
_LATER = 0.002


LabelReader = Callable[[Iterable[str]], Awaitable[Mapping[str, Collection[str]]]]


async def no_labels(_models: Iterable[str]) -> Mapping[str, Collection[str]]:
    """Return no labels. Used if no backend should be called."""
    return {}


class PublishedChange(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a publication. `live` is true if every worker has applied the document.

    `workers` maps each worker to `ok`, `pending` or an error. `changed` is false if the document
    was already active. `notice` then says why an operator's change may have been missed. After a
    rollback, it says whose texts operators now see. Otherwise, it is empty.
    """

    generation: int
    digest: str
    changed: bool
    live: bool
    workers: dict[str, str]
    notice: str = ""


class CheckedDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A document that would be accepted, and how it differs from the active document."""

    valid: bool = True
    digest: str
    difference: DocumentDifference
    guards: Recounts | None
    """What each guard that changes would have decided about sampled past texts, or `null` if the
    cache Redis cannot be reached."""


class Publisher:
    """Publishes configuration documents. If a document is refused, nothing changes.

    `clock` returns the Unix time in seconds. After a publication, the publisher waits up to
    `workers_timeout` seconds until all workers apply the document. Redis may have lost documents.
    So `recovery` publishes lost documents again before each publication. `labels` returns the
    labels of models, as backends report them.
    """

    def __init__(
        self,
        *,
        control: "Control",
        ledger: "Ledger",
        settings: Settings,
        clock: Callable[[], float],
        recovery: Recovery = NOTHING_RECORDED,
        labels: LabelReader = no_labels,
        workers_timeout: float = 5.0,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._control = control
        self._ledger = ledger
        self._settings = settings
        self._clock = clock
        self._recovery = recovery
        self._labels = labels
        self._workers_timeout = workers_timeout
        self._chance = chance
        self.prices = PricePublisher(control=control, ledger_prices=ledger.prices)

    async def start(self, stop: asyncio.Event) -> None:
        """Publish the configuration folder if nothing is published, or if the folder has changed.

        The folder is compared with its content when it was last published. If the folder has not
        changed, the active document stays, even if that document came from elsewhere. If Redis
        cannot be reached, the method tries again until `stop` is set.
        """
        while not stop.is_set():
            try:
                await self._start()
            except (DependencyUnavailable, Conflict):  # `Conflict`: another gateway published first
                await pause(stop, _RETRY * (1.5 - self._chance()))
            except ConfigurationError as error:
                _log.error(
                    "the configuration folder is invalid and not published",
                    extra={"reason": explain(error)},
                )
                return
            else:
                return

    async def reload(self, *, author: str, may_price: bool = True) -> PublishedChange:
        """Publish the configuration folder.

        Raises:
            PermissionDenied: prices would change, and the author may not change prices.
            ConfigurationError: the folder is invalid, or a mounted file was replaced in a way that
                this process cannot see (see `gateway.config.mounts`). Nothing was changed.
        """
        for _ in range(_TRIES - 1):
            # A conflict means that another document was published meanwhile. The folder replaces
            # that document, too.
            with contextlib.suppress(Conflict):
                return await self._reload(author, may_price=may_price)
        return await self._reload(author, may_price=may_price)

    async def put(
        self, text: str, *, if_match: str, author: str, may_price: bool = True
    ) -> PublishedChange:
        """Replace the active document by `text`.

        `if_match` is empty, or the entity tag that the active document must have.

        Raises:
            PermissionDenied: prices would change, and the author may not change prices.
            ConfigurationError: the document is invalid, or would change the cost of past usage.
                Nothing was changed.
            PreconditionFailed: another document is active.
        """
        active, wanted = await self._validate_posted(text, if_match, self._active)
        await self._check_author(wanted, active, may_price=may_price)
        return await self._publish(active, wanted, author=author, reason="put")

    async def check(
        self, text: str, *, if_match: str, cache_redis: "PipelinedClient", may_price: bool = True
    ) -> CheckedDocument:
        """Validate a document as `put` does, without publishing it."""
        active, wanted = await self._validate_posted(text, if_match, self._control.active)
        await self._check_author(wanted, active, may_price=may_price)
        former = await _document_of(active) or Document()
        difference = await describe_difference(
            self._placed(former), self._placed(wanted.document), self._ledger.affected_tenants
        )
        changed = (former.guards, wanted.document.guards)
        guards = await recount_guards(self._control, cache_redis, *changed)
        return CheckedDocument(digest=wanted.digest, difference=difference, guards=guards)

    async def rollback(
        self, generation: int | None, *, author: str, may_price: bool = True
    ) -> PublishedChange:
        """Publish an earlier document again. The default is the document before the active one.

        If operators then see texts of more tenants, the `notice` names these tenants.

        Raises:
            PermissionDenied: prices would change, and the author may not change prices.
            NotFound: there is no such document.
        """
        active = await self._active()
        history = await self._control.history()
        target = rollback_target(history, active, generation)
        wanted = await self._validate(target.sources)
        await self._check_author(wanted, active, may_price=may_price)
        await self._check_change(wanted, active)
        reason = f"rollback to generation {target.origin}"
        change = await self._publish(
            active, wanted, author=author, reason=reason, origin=target.origin
        )
        former = await _document_of(active) or Document()
        added = {*wanted.document.decisions.texts} - {*former.decisions.texts}
        notice = f"operators now see sampled texts of: {', '.join(sorted(added))}" if added else ""
        return msgspec.structs.replace(change, notice=notice)

    def _placed(self, document: Document) -> Document:
        """Return the document.

        If a placement file defines the regions, the returned document has no regions.
        """
        if self._settings.placement is None:
            return document
        return msgspec.structs.replace(document, regions=())

    async def _reload(self, author: str, *, may_price: bool) -> PublishedChange:
        folder = self._settings.config
        await asyncio.to_thread(check_mounts, folder)
        sources = await asyncio.to_thread(read_folder, folder)
        wanted = await self._validate(sources)
        active = await self._active()
        if active is not None and active.sources == sources:
            same = await self._wait_for_workers(active, changed=False)
            return msgspec.structs.replace(same, notice=await asyncio.to_thread(_unchanged, folder))
        await self._check_author(wanted, active, may_price=may_price)
        await self._check_names(wanted, active)
        await self._check_change(wanted, active)
        return await self._publish(
            active, wanted, author=author, reason="reload", folder_digest=wanted.digest
        )

    async def _start(self) -> None:
        sources = await asyncio.to_thread(read_folder, self._settings.config)
        wanted = await self._validate(sources)
        active = await self._active()
        if active is None or active.folder_digest != wanted.digest:
            if active is None:  # the first document may be empty
                await self._check_prices(wanted, active)
            else:
                await self._check_change(wanted, active)
            await self._publish(
                active, wanted, author="start", reason="start", folder_digest=wanted.digest
            )
        elif await _document_of(active) is not None:
            # The ledger may not have the document's prices: a process stopped before it stored
            # them, an older version did not store them, or the ledger was restored from a backup.
            await asyncio.to_thread(self.prices.store, active)

    async def _active(self) -> Published | None:
        """Return the active document.

        If the state Redis has lost the document, recover it first.
        """
        await self._recovery.reconcile()
        return await self._control.active()

    async def _validate_posted(
        self,
        text: str,
        if_match: str,
        read_active: Callable[[], Awaitable[Published | None]],
    ) -> tuple[Published | None, ParsedDocument]:
        """Check the posted document; return the active document and the posted one."""
        wanted = await self._validate((DocumentSource(name=_POSTED, text=text),))
        active = await read_active()
        check_match(if_match, active)
        await self._check_names(wanted, active)
        await self._check_change(wanted, active)
        return active, wanted

    async def _validate(self, sources: Sources) -> ParsedDocument:
        """Validate `sources`: once alone, and once with this gateway's placement file."""

        def validate() -> ParsedDocument:
            load_sources(sources, placement=self._settings.placement)
            parsed = parse_sources(sources)
            check_memory(parsed, self._settings.memory_limit_bytes)
            return parsed

        return await asyncio.to_thread(validate)

    async def _check_names(self, wanted: ParsedDocument, active: Published | None) -> None:
        """Check the models, labels and tenants in a document.

        The start of a gateway and a rollback skip this check.

        Raises:
            ConfigurationError: a model or a tenant is unknown, a served model would lose its
                backends, or a model does not have a label that the document names.
        """
        await asyncio.to_thread(self._check_tenants, wanted)
        names = await valid_model_names(self._control, await _document_of(active))
        if names is not None:
            check_models(wanted, names, partial(explain_unknown_model, allowed=names))
            views = (await reported_backends(self._control)).values()
            check_pools(wanted, {name for view in views for name in view.models})
        if labelled := labelled_models(wanted.document):
            check_labels(wanted, await self._known_labels(labelled))

    async def _known_labels(self, models: Iterable[str]) -> Mapping[str, Collection[str]]:
        """Return the labels of each model that a backend of the active document serves.

        If this version cannot read the active document, its backends are unknown. The document can
        still be replaced.
        """
        try:
            return await self._labels(models)
        except ConfigurationError:
            return {}

    def _check_tenants(self, wanted: ParsedDocument) -> None:
        """Check the tenants in `decisions.texts`; accept all of them while the ledger is down."""
        named = wanted.document.decisions.texts
        if not named:
            return
        try:
            missing = self._ledger.accounts.missing(named)
            known = [each.id for each in self._ledger.accounts.tenants()] if missing else []
        except DependencyUnavailable:
            return
        if missing:
            path = ("decisions", "texts", named.index(missing[0]))
            raise wanted.tree.error(path, _unknown_tenant(missing[0], known))

    async def _check_author(
        self, wanted: ParsedDocument, active: Published | None, *, may_price: bool
    ) -> None:
        if may_price:
            return
        former = Document() if active is None else await _document_of(active)
        # If the active document is unreadable, its prices are unknown, so prices count as changed.
        if former is None or wanted.document.prices != former.prices:
            raise PermissionDenied(
                "the document changes prices: ask an operator with the role `billing` to publish it"
            )

    async def _check_change(self, wanted: ParsedDocument, active: Published | None) -> None:
        """Check that a document is not empty, and does not change the cost of past usage.

        Raises:
            ConfigurationError: the document is empty, or would change the cost of past usage.
            DependencyUnavailable: the prices would change, but the ledger is down.
        """
        if not wanted.tree.values:
            raise ConfigurationError(
                "the document is empty: it would remove every region, model, limit and price"
            )
        await self._check_prices(wanted, active)

    async def _check_prices(self, wanted: ParsedDocument, active: Published | None) -> None:
        prices = wanted.document.prices
        try:
            await asyncio.to_thread(self._ledger.prices.check, prices)
        except DependencyUnavailable:
            former = await _document_of(active)
            if former is None or former.prices != prices:
                raise

    async def _publish(
        self,
        active: Published | None,
        wanted: ParsedDocument,
        *,
        author: str,
        reason: str,
        folder_digest: str = "",
        origin: int = 0,
    ) -> PublishedChange:
        replaced = await _document_of(active)
        generation = 1 if active is None else active.generation + 1
        former_digest = "" if active is None else active.folder_digest
        now = self._clock()
        published = Published(
            generation=generation,
            origin=origin or generation,
            digest=wanted.digest,
            sources=wanted.sources,
            author=author,
            reason=reason,
            time=now if active is None else max(now, active.time + _LATER),
            folder_digest=folder_digest or former_digest,
        )
        # The audit entry comes first, so that there is no change without an entry.
        await asyncio.to_thread(self._audit, published, "config.publish")
        replacing = () if replaced is None else replaced.prices
        async with self.prices.after(published, replacing=replacing):
            await self._activate(published)
        with contextlib.suppress(GatewayError):  # if it fails, `Recovery.follow` tries again
            await self._recovery.reconcile()
        return await self._wait_for_workers(published, changed=True)

    async def _activate(self, published: Published) -> None:
        outcome = "failed"
        try:
            if await self._control.publish(published):
                return
            raise Conflict("another document was published meanwhile: read it, and try again")
        except GatewayError as error:
            if isinstance(error, DependencyUnavailable):
                outcome = "unanswered"
            with contextlib.suppress(GatewayError):
                await asyncio.to_thread(self._audit, published, f"config.publish.{outcome}")
            raise

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


def _unknown_tenant(name: str, known: Iterable[str]) -> str:
    meant = closest(name, known)
    hint = f"; did you mean `{meant}`?" if meant else "; create the tenant first."
    return f"there is no tenant `{name[:80]}`{hint}"


async def _document_of(active: Published | None) -> Document | None:
    """Parse the active document.

    Return `None` if no document is active, or if this version cannot read it.

    A document that this version cannot read can still be replaced.
    """
    if active is None:
        return None
    try:
        return await asyncio.to_thread(load_sources, active.sources)
    except ConfigurationError as error:
        _log.warning("the active document cannot be read", extra={"reason": explain(error)})
        return None


def _unchanged(folder: Path) -> str:
    """Return a notice if single files of the folder are mounted, else an empty string.

    A change of such a file may be invisible to this process.
    """
    mounted = [path.name for path in mounted_files(folder)]
    if not mounted:
        return ""
    return (
        f"nothing has changed, but these files are mounted singly: `{'`, `'.join(mounted)}`."
        " Such a mount hides a file that an editor has replaced: mount the folder instead"
    )
