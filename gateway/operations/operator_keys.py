"""Authenticates operators by their keys. Caches the keys in case the ledger becomes unreachable."""

import asyncio
import logging
import time
from collections.abc import Callable
from math import inf
from typing import NamedTuple, Protocol, Self

from sluicegate.gateway.auth.keys import LONGEST, digest_of_key, has_valid_checksum
from sluicegate.gateway.errors import DependencyUnavailable
from sluicegate.gateway.ledger.operators import ValidOperatorKey
from sluicegate.gateway.operations.operators import KEY_PREFIX, Operator, Role
from sluicegate.gateway.tasks import PeriodicTask

_FRESH = 5.0
"""If the last read of the ledger is at most this many seconds ago, an unknown key is refused
without another read."""
_log = logging.getLogger(__name__)


class ValidKeyReader(Protocol):
    """Reads the valid keys of operators. Blocks."""

    def valid_keys(self) -> list[ValidOperatorKey]:
        """Return the hashes of all valid secrets.

        Raises:
            DependencyUnavailable: the store cannot be reached.
        """
        ...


class _Known(NamedTuple):
    operator: Operator
    expires: int | None


class OperatorKeys:
    """Reads the operators' keys at the start of the context, and then every `poll` seconds.

    If the ledger becomes unreachable, the cached keys stay valid for `kept` seconds.
    """

    def __init__(
        self,
        *,
        store: ValidKeyReader,
        poll: float = 1.0,
        kept: float = 3600.0,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], int] = time.time_ns,
    ) -> None:
        self._store = store
        self._kept = kept
        self._monotonic = monotonic
        self._wall = wall
        self._known: dict[bytes, _Known] = {}
        self._read = -inf
        """When the last successful read began."""
        self._is_reached = True
        self._polling = PeriodicTask(
            self.refresh, interval=poll, failure="the operators' keys cannot be read"
        )

    async def __aenter__(self) -> Self:
        await self._polling.__aenter__()
        self._polling.wake()  # does not wait for the read, because the ledger may be unreachable
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._polling.__aexit__(*exc_info)

    async def refresh(self) -> None:
        """Read the keys. If the ledger cannot be reached, the cached keys stay."""
        began = self._monotonic()
        try:
            found = await asyncio.to_thread(self._store.valid_keys)
        except DependencyUnavailable as error:
            if self._is_reached:
                _log.warning(
                    "the operators' keys cannot be read; the cached keys stay valid for a time",
                    extra={"reason": error.detail, "seconds": self._kept},
                )
            self._is_reached = False
            return
        self._is_reached = True
        if began >= self._read:  # otherwise a read that began later has already finished
            self._known = {bytes.fromhex(key.key_hash): _known(key) for key in found}
            self._read = began

    async def find(self, token: str) -> Operator | None:
        """Return the operator whose key is `token`, or `None` if the key is unknown.

        Raises:
            DependencyUnavailable: the ledger cannot be reached, and the cache is too old or does
                not have the key.
        """
        sent = token.encode("utf-8", "surrogateescape")
        if not (token.isascii() and token.startswith(f"{KEY_PREFIX}-")) or len(sent) > LONGEST:
            return None
        known = self._known.get(digest_of_key(sent))
        age = self._monotonic() - self._read
        if known is not None and age <= self._kept:
            is_valid = known.expires is None or known.expires > self._wall()
            return known.operator if is_valid else None
        if age > _FRESH and has_valid_checksum(token):
            raise DependencyUnavailable(
                "the ledger cannot be reached to check the operator's key; try again, or use the"
                " admin key",
                retry_after=1.0,
            )
        return None


def _known(key: ValidOperatorKey) -> _Known:
    # Unknown roles are ignored: a newer version of Sluicegate may have stored them.
    roles = frozenset(Role(name) for name in key.roles if name in set(Role))
    return _Known(Operator(key.operator, roles), key.expires)
