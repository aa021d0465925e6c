"""Stores the prices of published documents in the ledger, and retries while the ledger is down."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from sluicegate.gateway.config.document import PriceConfig
from sluicegate.gateway.config.load import load_sources
from sluicegate.gateway.errors import DependencyUnavailable, GatewayError
from sluicegate.gateway.runtime.control_values import Published
from sluicegate.gateway.tasks import PeriodicTask

if TYPE_CHECKING:  # see `gateway.operations.context`
    from sluicegate.gateway.ledger.prices import PublishedPrices
    from sluicegate.gateway.runtime.control import Control

_log = logging.getLogger(__name__)
_RETRY = 1.0
_SECOND = 1_000_000_000


class PricePublisher:
    """Stores the prices of published documents in the ledger, one document at a time."""

    def __init__(self, *, control: "Control", ledger_prices: "PublishedPrices") -> None:
        self._control = control
        self._ledger_prices = ledger_prices
        self._lock = asyncio.Lock()
        self._pending: Published | None = None
        """A published document whose prices are not in the ledger yet."""
        self._unconfirmed: Published | None = None
        """A document that may be published, but Redis has not confirmed it."""
        self._replaced: tuple[PriceConfig, ...] = ()
        """Prices of the documents that were replaced since the ledger was last updated."""

    @contextlib.asynccontextmanager
    async def after(
        self, published: Published, *, replacing: Sequence[PriceConfig]
    ) -> AsyncIterator[None]:
        """Store the prices of `published` at the end of the `async with` block.

        The block must activate the document. `replacing` has the prices of the previous document.
        """
        async with self._lock:
            self._replaced += tuple(replacing)
            try:
                yield
            except DependencyUnavailable:  # it may be active, if only the response was lost
                self._unconfirmed = published
                raise
            await self._store(published)

    def store(self, published: Published, *, replacing: Sequence[PriceConfig] = ()) -> None:
        """Store the prices of `published`. The call blocks.

        Raises:
            DependencyUnavailable: the ledger is down.
            ConfigurationError: the cost of past usage would change. Nothing was stored.
        """
        prices, agreed = load_sources(published.sources).prices, int(published.time * _SECOND)
        self._ledger_prices.publish(prices, former=replacing, agreed=agreed)

    async def follow(self, stop: asyncio.Event) -> None:
        """Until `stop` is set, store prices that were published while the ledger was down."""
        # If prices are still pending now, the next gateway that starts stores them.
        async with PeriodicTask(self._retry, interval=_RETRY, failure="prices were not stored"):
            await stop.wait()

    async def _retry(self) -> None:
        async with self._lock:
            if self._unconfirmed is not None:
                with contextlib.suppress(DependencyUnavailable):
                    active = await self._control.active()
                    if active == self._unconfirmed:
                        self._pending = active
                    self._unconfirmed = None
            if self._pending is not None:
                await self._store(self._pending)

    async def _store(self, published: Published) -> None:
        """Store the prices of `published` in the ledger, or schedule a retry."""
        try:
            await asyncio.to_thread(self.store, published, replacing=self._replaced)
        except DependencyUnavailable as error:
            if self._pending is None:
                _log.warning(
                    "the published prices are not in the ledger yet; trying again",
                    extra={"reason": error.detail},
                )
            self._pending = published
            return
        except GatewayError as error:
            _log.error("the ledger refuses the prices", extra={"reason": error.detail})
        self._pending, self._replaced = None, ()
