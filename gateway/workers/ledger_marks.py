"""Reads up to which record the ledger has committed each event log.

A read has a timeout.
"""

import asyncio
from collections.abc import Callable
from functools import partial

from sluicegate.gateway.errors import DependencyUnavailable
from sluicegate.gateway.tasks import ignore_outcome


class LedgerMarks:
    """Reads high-water marks in a thread, with one query at a time.

    The mark of an event log is the sequence number of its last record in the ledger, or 0 if the
    ledger has no records of the log. The function `high_water` returns the mark of each log. While
    the ledger is down, the function raises `DependencyUnavailable`. The caller waits at most
    `timeout` seconds for a query.
    """

    def __init__(
        self, high_water: Callable[[list[str]], dict[str, int]], *, timeout: float = 1.0
    ) -> None:
        self._high_water = high_water
        self._timeout = timeout
        self._query: asyncio.Future[dict[str, int]] | None = None
        """The last query. After its timeout, its thread can still be waiting for the ledger."""

    async def read(self, log_ids: list[str]) -> dict[str, int]:
        """Return the sequence number of each log's last record that the ledger has committed.

        If the ledger is down or too slow, the result is an empty dictionary. A result that arrives
        late is discarded, because the stream has changed in the meantime.
        """
        if not log_ids or (self._query is not None and not self._query.done()):
            return {}
        ask = partial(self._high_water, log_ids)
        query = self._query = asyncio.get_running_loop().run_in_executor(None, ask)
        await asyncio.wait([query], timeout=self._timeout)
        if not query.done():
            query.add_done_callback(ignore_outcome)
            return {}
        try:
            return query.result()
        except DependencyUnavailable:
            return {}
