"""Resolves names from a table that a test sets."""

import asyncio
from collections.abc import Sequence

from sluicegate.gateway.upstream.resolving import Addresses, ResolutionFailed


class TableResolver:
    """Answers from `table`, which may change; a name that is not in it cannot be resolved."""

    def __init__(self, **table: Sequence[str]) -> None:
        self.table: dict[str, Sequence[str]] = dict(table)
        self.is_hanging = False
        """Whether look-ups never end."""
        self.asked = 0

    async def addresses(self, host: str) -> Addresses:
        """See `Resolver.addresses`."""
        self.asked += 1
        if self.is_hanging:
            await asyncio.Event().wait()
        if host not in self.table:
            raise ResolutionFailed(f"`{host}` is not in the table")
        return tuple(self.table[host])
