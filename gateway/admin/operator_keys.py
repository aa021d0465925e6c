"""Finds the operators of the ledger by their keys, in memory, also while the ledger is away."""

import asyncio
import logging
import time
from collections.abc import Callable
from math import inf
from typing import NamedTuple, Protocol, Self

from gateway.admin.operators import Operator, Role
from gateway.auth.keys import LONGEST, digest_of_key, has_valid_checksum
from gateway.errors import DependencyUnavailable
from gateway.ledger.operators import ValidOperatorKey
from gateway.tasks import PeriodicTask

PREFIX = "op"
_FRESH = 5.0
"""Seconds since the last read within which an unknown key is known to be of nobody."""
_log = logging.getLogger(__name__)


class ValidKeyReader(Protocol):
    """Reads the valid keys of operators. Blocks."""

    def valid_keys(self) -> list[ValidOperatorKey]:
        """Return the keys.

        Raises:
            DependencyUnavailable: the store cannot be reached.
        """
        ...


class _Known(NamedTuple):
    operator: Operator
    expires: int | None


class OperatorKeys:
    """Reads the keys after it is entered, and then each `poll` seconds.

    While the ledger is away, those of the last read are valid for `kept` seconds more.
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
        """When the last read that succeeded began."""
        self._is_reached = True
        self._polling = PeriodicTask(
            self.refresh, interval=poll, failure="the keys of operators were not read"
        )

    async def __aenter__(self) -> Self:
        await self._polling.__aenter__()
        self._polling.wake()  # nobody waits for a ledger that is away
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._polling.__aexit__(*exc_info)

    async def refresh(self) -> None:
        """Read the keys; those of the last read stay where the ledger cannot be reached."""
        began = self._monotonic()
        try:
            found = await asyncio.to_thread(self._store.valid_keys)
        except DependencyUnavailable as error:
            if self._is_reached:
                _log.warning(
                    "the keys of operators cannot be read; the last ones stay valid for a time",
                    extra={"reason": error.detail, "seconds": self._kept},
                )
            self._is_reached = False
            return
        self._is_reached = True
        if began >= self._read:  # a read that was overtaken knows less
            self._known = {bytes.fromhex(key.key_hash): _known(key) for key in found}
            self._read = began

    async def find(self, token: str) -> Operator | None:
        """Return the operator whose key is `token`, `None` if it is nobody's.

        Raises:
            DependencyUnavailable: the ledger is away and the key unknown, or known too long ago.
        """
        text = token.encode("utf-8", "surrogateescape")
        if not (token.isascii() and token.startswith(f"{PREFIX}-")) or len(text) > LONGEST:
            return None
        known = self._known.get(digest_of_key(text))
        age = self._monotonic() - self._read
        if known is not None and age <= self._kept:
            is_valid = known.expires is None or known.expires > self._wall()
            return known.operator if is_valid else None
        if age > _FRESH and has_valid_checksum(token):
            raise DependencyUnavailable(
                "the ledger is away, so that the keys of operators cannot be checked; try again,"
                " or use the admin key",
                retry_after=1.0,
            )
        return None


def _known(key: ValidOperatorKey) -> _Known:
    # A later version may know other roles.
    roles = frozenset(Role(name) for name in key.roles if name in set(Role))
    return _Known(Operator(key.operator, roles), key.expires)
