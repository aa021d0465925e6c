"""Keeps a worker's API keys up to date. While the ledger is down, the known keys stay valid."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from math import inf
from typing import Protocol, Self

from sluicegate.gateway.auth.key_ring import KeyRing, PrincipalTable
from sluicegate.gateway.errors import DependencyUnavailable
from sluicegate.gateway.ledger.migrations import LedgerEmpty
from sluicegate.gateway.ledger.principals import AccountsVersion, PrincipalChanges
from sluicegate.gateway.tasks import PeriodicTask
from sluicegate.gateway.types import KeyId, Principal

_AT_ONCE = 1000
"""The number of API keys that one event-loop iteration replaces. This takes some milliseconds."""
_SET_BACK = 1_000_000_000
"""If the clock goes back by more than this many nanoseconds, all keys are read again."""
_OVERDUE = 2.0
"""A read that takes longer than this many seconds means that the ledger is unreachable."""
_NEVER_CHANGED = AccountsVersion()
_NEW = "the ledger is new and has no keys: restore the former ledger, or create keys"
_Found = tuple[str, Principal]
_log = logging.getLogger(__name__)


class PrincipalStore(Protocol):
    """Reads API keys from the ledger. Calls block, and raise `DependencyUnavailable` on failure."""

    def changes(self, since: AccountsVersion | None) -> PrincipalChanges | None:
        """Return the changes since a version, or `None` if nothing has changed.

        If `since` is `None`, all principals are returned.
        """
        ...


class PrincipalsFollower:
    """Loads all API keys at the start, and changed keys every `poll` seconds or when notified."""

    def __init__(
        self,
        *,
        ring: KeyRing,
        accounts: PrincipalStore,
        poll: float = 0.8,
        wall: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ring = ring
        self._wall = wall
        self._monotonic = monotonic
        self._began = inf
        """When the read in progress began or last returned a row. The value is infinite if no read
        is in progress."""
        self._accounts = accounts
        self._seen: AccountsVersion | None = None
        self._latest = 0
        self._is_loaded = False
        self._reached = True
        self.emptiness = ""
        """The reason why the ledger has no keys although it can be reached, or an empty string."""
        self._lock = asyncio.Lock()
        self._polling = PeriodicTask(
            self.refresh, interval=poll, failure="keys cannot be read; the last keys stay valid"
        )

    @property
    def is_loaded(self) -> bool:
        """Whether keys have been read at least once."""
        return self._is_loaded

    @property
    def is_reached(self) -> bool:
        """Whether the last read succeeded, and no read in progress is overdue."""
        return self._reached and self._monotonic() - self._began < _OVERDUE

    async def __aenter__(self) -> Self:
        await self.refresh()
        await self._polling.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._polling.__aexit__(*exc_info)

    async def refresh(self) -> None:
        """Update the keys. If the ledger is down, the known keys stay valid until they expire."""
        try:
            await self.read_again()
        except DependencyUnavailable as error:
            emptiness = error.detail if isinstance(error, LedgerEmpty) else ""
            if self._reached or emptiness not in ("", self.emptiness):
                rest = "; the last keys stay valid" if self._is_loaded else ""
                _log.warning("keys cannot be read" + rest, extra={"reason": error.detail})
            self._reached = False
            self.emptiness = emptiness
        else:
            self._reached = True
            self.emptiness = ""

    async def read_again(self) -> None:
        """Update the keys.

        Raises:
            DependencyUnavailable: the ledger is down.
            LedgerEmpty: the ledger does not exist. Or it is new and empty, although this worker
                already knows keys.
        """
        async with self._lock:
            self._began = self._monotonic()
            try:
                await self._read_changes()
            finally:
                self._began = inf
                self._ring.drop_expired(self._wall())

    async def _read_changes(self) -> None:
        now = self._wall()
        if now < self._latest - _SET_BACK:
            self._seen = None  # while the clock was wrong, valid keys may have been dropped
            self._latest = now
        self._latest = max(self._latest, now)
        changes = await asyncio.to_thread(self._accounts.changes, self._seen)
        if changes is None:
            return
        # Each row restarts the time limit, so that a long read is not overdue while rows arrive.
        found = self._noting_progress(changes.principals)
        if changes.is_everything:
            table = await asyncio.to_thread(lambda: PrincipalTable(_readable(found)))
            if changes.version == _NEVER_CHANGED and len(self._ring) and not table.by_digest:
                raise LedgerEmpty(_NEW)
            self._ring.replace_table(table)
            self._is_loaded = True
        else:
            replaced = await asyncio.to_thread(_by_key, changes.keys, found)
            keys = iter(replaced.items())
            while some := dict(islice(keys, _AT_ONCE)):
                self._ring.replace_keys(some)
                await asyncio.sleep(0)
        # The version is set last, so that an interrupted read is repeated.
        self._seen = changes.version

    def _noting_progress(self, found: Iterator[_Found]) -> Iterator[_Found]:
        for one in found:
            self._began = self._monotonic()
            yield one
        self._began = inf


def _by_key(
    keys: Iterable[KeyId], found: Iterator[_Found]
) -> dict[KeyId, list[tuple[bytes, Principal]]]:
    replaced: dict[KeyId, list[tuple[bytes, Principal]]] = {key: [] for key in keys}
    for hash_, principal in _readable(found):
        replaced.setdefault(principal.key, []).append((hash_, principal))
    return replaced


def _readable(found: Iterator[_Found]) -> Iterator[tuple[bytes, Principal]]:
    """Yield hashes as bytes.

    Keys with a damaged hash are skipped, so that other keys still work.
    """
    for hash_, principal in found:
        try:
            digest = bytes.fromhex(hash_)
        except (TypeError, ValueError):
            _log.error(
                "the hash of a key in the ledger is damaged and the key is refused; rotate it",
                extra={"key": principal.key, "tenant": principal.tenant},
            )
        else:
            yield digest, principal
