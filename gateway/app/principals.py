"""Follows the keys in the SQL store; while that is down, the last ones stay in force."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Protocol, Self

from gateway.auth.key_ring import KeyRing
from gateway.errors import DependencyUnavailable
from gateway.tasks import PeriodicTask
from gateway.types import Principal

_log = logging.getLogger(__name__)


class PrincipalStore(Protocol):
    """Stores keys. Blocks; raises `DependencyUnavailable` when it cannot be reached."""

    def version(self) -> int:
        """Return a number that changes whenever `load_principals` may."""
        ...

    def load_principals(self) -> Mapping[str, Principal]:
        """Return every key's principal, by the key's hash."""
        ...


class PrincipalsFollower:
    """Loads keys when entered, upon a change, and each `poll` seconds as a safety net."""

    def __init__(
        self,
        *,
        ring: KeyRing,
        accounts: PrincipalStore,
        poll: float = 0.8,
        wall: Callable[[], int] = time.time_ns,
    ) -> None:
        self._ring = ring
        self._wall = wall
        self._accounts = accounts
        self._seen: int | None = None
        self._reached = True
        self._lock = asyncio.Lock()
        self._polling = PeriodicTask(
            self.refresh, interval=poll, failure="keys were not read; the last ones stay in force"
        )

    @property
    def is_loaded(self) -> bool:
        """Whether keys were ever read."""
        return self._seen is not None

    async def __aenter__(self) -> Self:
        await self.refresh()
        await self._polling.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._polling.__aexit__(*exc_info)

    async def refresh(self) -> None:
        """Bring the ring up to date; while the store is down, its keys stay until they expire."""
        try:
            await self.read_again()
        except DependencyUnavailable as error:
            if self._reached:
                _log.warning(
                    "keys cannot be read; the last ones stay in force",
                    extra={"reason": error.detail},
                )
            self._reached = False
            self._ring.drop_expired(self._wall())
        else:
            self._reached = True

    async def read_again(self) -> None:
        """Bring the ring up to date.

        Raises:
            DependencyUnavailable: the store is down.
        """
        async with self._lock:
            version = await asyncio.to_thread(self._accounts.version)
            if version != self._seen:
                self._ring.replace(await asyncio.to_thread(self._accounts.load_principals))
                self._seen = version
