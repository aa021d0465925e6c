"""Keeps the key ring as the SQL store has it; with the store down, what was known stays known."""

import asyncio
import contextlib
import logging
from types import TracebackType
from typing import Self

from gateway.auth.key_ring import KeyRing
from gateway.errors import DependencyUnavailable
from gateway.ledger.ledger import Ledger

_log = logging.getLogger(__name__)
_NEVER = -1


class PrincipalsFollower:
    """Loads keys at its start, when told of a change, and each `poll` seconds as a safety net."""

    def __init__(self, *, ring: KeyRing, ledger: Ledger, poll: float = 2.0) -> None:
        self._ring = ring
        self._ledger = ledger
        self._poll = poll
        self._seen = _NEVER
        self._loaded = False
        self._lock = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_loaded(self) -> bool:
        """Whether keys were ever read."""
        return self._loaded

    async def __aenter__(self) -> Self:
        await self.refresh()
        self._task = asyncio.get_running_loop().create_task(self._follow())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping.set()
        if self._task is not None:
            await self._task

    async def refresh(self) -> None:
        """Bring the ring up to date; changes nothing while the store is down."""
        async with self._lock:
            try:
                await self._load()
            except DependencyUnavailable as error:
                _log.warning("keys cannot be read; known ones stay", extra={"reason": error.detail})

    async def _load(self) -> None:
        accounts = self._ledger.accounts
        version = await asyncio.to_thread(accounts.version)
        if version == self._seen:
            return
        self._ring.replace(await asyncio.to_thread(accounts.load_principals))
        self._seen = version
        self._loaded = True

    async def _follow(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), self._poll)
            if not self._stopping.is_set():
                await self.refresh()
