"""Reports how many units a worker's callers request, and applies the region's shares of limits.

Each limit is divided among the regions. The share of a region is a fraction of the limit. A store
in the ledger keeps all shares.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import NamedTuple, Protocol, Self

import msgspec

from sluicegate.gateway.config.document import Document
from sluicegate.gateway.errors import DependencyUnavailable
from sluicegate.gateway.rate_limit.base import RegionalLimits, UndividedLimits
from sluicegate.gateway.regional_limits.limits import DividedLimits
from sluicegate.gateway.regional_limits.values import BucketShares, ShareReport
from sluicegate.gateway.tasks import PeriodicTask


class LimitsOfRegion(NamedTuple):
    """Holds a region's limits, the follower that updates these limits, and their statistics."""

    shares: RegionalLimits
    follower: AbstractAsyncContextManager[object]
    figures: Mapping[str, Callable[[], msgspec.Struct]]


_log = logging.getLogger(__name__)
_SHORTEST_PAUSE = 0.1
"""Minimum seconds between two reports."""


class ShareStore(Protocol):
    """Stores regions' shares of limits.

    Methods block. They raise `DependencyUnavailable` if the store is down.
    """

    def report(self, report: ShareReport, *, lease: float, longest: float) -> BucketShares:
        """Record a worker's demand; return the shares of the worker's region."""
        ...

    def leave(self, region: str, worker: str) -> None:
        """Remove a worker's lease."""
        ...


class SharesFollower:
    """Reports demand and applies shares every `poll` seconds, and as soon as a quota runs low.

    While the store is down, the last shares stay in use until their lease expires.
    """

    def __init__(
        self,
        *,
        shares: DividedLimits,
        store: ShareStore,
        document: Callable[[], Document],
        monotonic: Callable[[], float],
        poll: float = 1.0,
    ) -> None:
        self._shares = shares
        self._store = store
        self._document = document
        self._monotonic = monotonic
        self._reached = True
        self._polling = PeriodicTask(
            self._step,
            interval=poll,
            failure="the region's shares of limits could not be updated; trying again",
        )
        shares.on_quota_low = self._polling.wake

    async def __aenter__(self) -> Self:
        await self.refresh()
        await self._polling.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._polling.__aexit__(*exc_info)
        with contextlib.suppress(DependencyUnavailable):  # the worker's lease expires by itself
            await asyncio.to_thread(self._store.leave, self._shares.region, self._shares.worker)

    async def refresh(self) -> None:
        """Report demand, and apply the returned shares."""
        document = self._document()
        sent_at = self._monotonic()
        try:
            shares = await asyncio.to_thread(
                self._store.report,
                self._shares.report(),
                lease=document.limits.share_lease,
                longest=document.deadline.maximum,
            )
        except DependencyUnavailable as error:
            if self._reached:
                _log.warning(
                    "the ledger is unreachable; the region's shares of limits are not renewed",
                    extra={"reason": error.detail},
                )
            self._reached = False
        else:
            self._reached = True
            self._shares.apply(shares, sent_at=sent_at)

    async def _step(self) -> None:
        try:
            await self.refresh()
        finally:
            await asyncio.sleep(_SHORTEST_PAUSE)  # limits the rate of reports


def limits_of_region(
    region: str,
    *,
    worker: str,
    store: ShareStore,
    document: Callable[[], Document],
    monotonic: Callable[[], float],
) -> LimitsOfRegion:
    """Build the limits of `region` and their follower. Without a region, limits apply in full."""
    if not region:
        return LimitsOfRegion(UndividedLimits(), nullcontext(), {})
    shares = DividedLimits(
        region=region,
        worker=worker,
        alone=lambda: document().limits.local_share,
        monotonic=monotonic,
    )
    follower = SharesFollower(shares=shares, store=store, document=document, monotonic=monotonic)
    return LimitsOfRegion(shares, follower, {"shares": shares.statistics})
