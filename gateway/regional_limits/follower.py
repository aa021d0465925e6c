"""Follows what a region may use of each limit, and tells the store what is asked for."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from types import TracebackType
from typing import NamedTuple, Protocol, Self

import msgspec

from gateway.config.document import Document
from gateway.errors import DependencyUnavailable
from gateway.rate_limit.shares import LimitShares, RegionalShares, WholeLimits
from gateway.runtime.follower import identity
from gateway.runtime.store import RuntimeStore
from gateway.settings import Settings
from gateway.types import BucketShares, ShareReport


class LimitsOfRegion(NamedTuple):
    """What a worker has of each limit, and what keeps that up to date while it is entered."""

    shares: LimitShares
    follower: AbstractAsyncContextManager[object]
    figures: Mapping[str, Callable[[], msgspec.Struct]]
    """What to show of it, by part."""


_log = logging.getLogger(__name__)
_SOON = 0.1


class ShareStore(Protocol):
    """Where shares are kept. Blocks; raises `DependencyUnavailable` when it cannot be asked."""

    def report(self, report: ShareReport, *, lease: float, longest: float) -> BucketShares:
        """Take in what a worker says, and return what its region may use."""
        ...

    def leave(self, region: str, worker: str) -> None:
        """Let a worker go."""
        ...


class SharesFollower:
    """Reports and takes shares each `poll` seconds, and soon where a quota is needed.

    While the store is down, what was known holds as long as its lease.
    """

    def __init__(
        self,
        *,
        shares: RegionalShares,
        store: ShareStore,
        document: Callable[[], Document],
        monotonic: Callable[[], float],
        poll: float = 1.0,
    ) -> None:
        self._shares = shares
        self._store = store
        self._document = document
        self._monotonic = monotonic
        self._poll = poll
        self._reached = True
        self._wanted = asyncio.Event()
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._shares.wanted = self._wanted.set
        await self._refresh()
        self._task = asyncio.get_running_loop().create_task(self._follow())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._wanted.set()
        if self._task is not None:
            await self._task
        with contextlib.suppress(DependencyUnavailable):  # its lease ends by itself
            await asyncio.to_thread(self._store.leave, self._shares.region, self._shares.worker)

    async def refresh(self) -> None:
        """Report, and go by what is answered.

        Raises:
            DependencyUnavailable: the store is down; what was known holds.
        """
        document = self._document()
        asked_at = self._monotonic()
        shares = await asyncio.to_thread(
            self._store.report,
            self._shares.report(),
            lease=document.limits.share_lease,
            longest=document.deadline.maximum,
        )
        self._shares.take(shares, asked_at=asked_at)

    async def _refresh(self) -> None:
        try:
            await self.refresh()
        except DependencyUnavailable as error:
            if self._reached:
                _log.warning("shares of limits are not renewed", extra={"reason": error.detail})
            self._reached = False
        else:
            self._reached = True

    async def _follow(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), self._poll)
            self._wanted.clear()
            if self._stopping.is_set():
                return
            try:
                await self._refresh()
            except Exception:  # noqa: BLE001 - one bad answer must not end the following of later ones
                _log.exception("shares of limits were not taken")
            with contextlib.suppress(TimeoutError):  # however often a quota is wanted
                await asyncio.wait_for(self._stopping.wait(), _SOON)


def limits_of_region(
    settings: Settings,
    *,
    store: ShareStore,
    runtimes: RuntimeStore,
    monotonic: Callable[[], float],
) -> LimitsOfRegion:
    """Make what divides limits among regions; where there is one only, it divides nothing."""
    if not settings.region:
        return LimitsOfRegion(WholeLimits(), nullcontext(), {})
    shares = RegionalShares(
        region=settings.region,
        worker=identity(settings),
        alone=lambda: runtimes.current.document.limits.local_share,
        monotonic=monotonic,
    )
    follower = SharesFollower(
        shares=shares,
        store=store,
        document=lambda: runtimes.current.document,
        monotonic=monotonic,
    )
    return LimitsOfRegion(shares, follower, {"shares": shares.statistics})
