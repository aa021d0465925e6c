"""Follows the keys in the SQL store; while that is down, the last ones stay in force."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from math import inf
from typing import Protocol, Self

from gateway.auth.key_ring import KeyRing, PrincipalTable
from gateway.errors import DependencyUnavailable
from gateway.ledger.migrations import LedgerEmpty
from gateway.ledger.principals import AccountsVersion, PrincipalChanges
from gateway.tasks import PeriodicTask
from gateway.types import KeyId, Principal

_AT_ONCE = 1000
"""Keys that are replaced in one event-loop iteration: some milliseconds."""
_SET_BACK = 1_000_000_000
"""Nanoseconds by which a clock must go back until keys that it let expire are read again."""
_OVERDUE = 2.0
"""Seconds after which a read that has not ended is taken for one of a store that is away."""
_NEVER_CHANGED = AccountsVersion()
_NEW = "the ledger is new and has no keys: restore the former ledger, or create keys"
_Found = tuple[str, Principal]
_log = logging.getLogger(__name__)


class PrincipalStore(Protocol):
    """Stores keys. Blocks; raises `DependencyUnavailable` when it cannot be reached."""

    def changes(self, since: AccountsVersion | None) -> PrincipalChanges | None:
        """Return what changed since a version, `None` if nothing did; `None` asks for all."""
        ...


class PrincipalsFollower:
    """Loads keys when entered; reads what changed upon a change, and each `poll` seconds."""

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
        """When the present read began; infinite when there is none."""
        self._accounts = accounts
        self._seen: AccountsVersion | None = None
        self._latest = 0
        self._is_loaded = False
        self._reached = True
        self.emptiness = ""
        """Why a store that is reached has no keys to read; else empty."""
        self._lock = asyncio.Lock()
        self._polling = PeriodicTask(
            self.refresh, interval=poll, failure="keys were not read; the last ones stay in force"
        )

    @property
    def is_loaded(self) -> bool:
        """Whether keys were ever read."""
        return self._is_loaded

    @property
    def is_reached(self) -> bool:
        """Whether the store was reached when it was last read, and does not hold up a read now."""
        return self._reached and self._monotonic() - self._began < _OVERDUE

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
            emptiness = error.detail if isinstance(error, LedgerEmpty) else ""
            if self._reached or emptiness not in ("", self.emptiness):
                rest = "; the last ones stay in force" if self._is_loaded else ""
                _log.warning("keys cannot be read" + rest, extra={"reason": error.detail})
            self._reached = False
            self.emptiness = emptiness
        else:
            self._reached = True
            self.emptiness = ""

    async def read_again(self) -> None:
        """Bring the ring up to date.

        Raises:
            DependencyUnavailable: the store is down.
            LedgerEmpty: the store has no ledger, or a new one, although keys are known here.
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
            self._seen = None  # keys may have expired by a clock that was wrong
            self._latest = now
        self._latest = max(self._latest, now)
        changes = await asyncio.to_thread(self._accounts.changes, self._seen)
        if changes is None:
            return
        # Each row is an answer: what takes long is not the store.
        found = self._answering(changes.principals)
        if changes.is_everything:
            table = await asyncio.to_thread(_table, found)
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
        # Not before: what was interrupted is read again.
        self._seen = changes.version

    def _answering(self, found: Iterator[_Found]) -> Iterator[_Found]:
        for one in found:
            self._began = self._monotonic()
            yield one
        self._began = inf


def _table(found: Iterator[_Found]) -> PrincipalTable:
    return PrincipalTable(_readable(found))


def _by_key(
    keys: Iterable[KeyId], found: Iterator[_Found]
) -> dict[KeyId, list[tuple[bytes, Principal]]]:
    replaced: dict[KeyId, list[tuple[bytes, Principal]]] = {key: [] for key in keys}
    for hash_, principal in _readable(found):
        replaced.setdefault(principal.key, []).append((hash_, principal))
    return replaced


def _readable(found: Iterator[_Found]) -> Iterator[tuple[bytes, Principal]]:
    """Yield hashes as bytes, without keys whose hash is damaged: all others must be followed."""
    for hash_, principal in found:
        try:
            digest = bytes.fromhex(hash_)
        except (TypeError, ValueError):
            _log.error(
                "the ledger has a damaged hash of a key, which is refused; rotate the key",
                extra={"key": principal.key, "tenant": principal.tenant},
            )
        else:
            yield digest, principal
