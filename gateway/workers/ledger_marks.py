"""Asks the ledger up to which record it has committed event logs, within a time-out."""

import asyncio
from collections.abc import Callable
from functools import partial

from gateway.errors import DependencyUnavailable
from gateway.tasks import ignore_outcome


class LedgerMarks:
    """Reads marks in a thread, one query at a time, for at most `timeout` seconds.

    `high_water` returns the mark per log, 0 for nothing, or raises `DependencyUnavailable`.
    """

    def __init__(
        self, high_water: Callable[[list[str]], dict[str, int]], *, timeout: float = 1.0
    ) -> None:
        self._high_water = high_water
        self._timeout = timeout
        self._query: asyncio.Future[dict[str, int]] | None = None
        """The last query, which may have timed out and still run."""

    async def read(self, log_ids: list[str]) -> dict[str, int]:
        """Return the mark per log; none if the ledger is down or does not answer in time.

        A late answer is discarded: the stream has changed since.
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
