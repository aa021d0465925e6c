"""Compares this machine's clock with the clocks of two servers: Redis and the ledger's database."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Final, Self

import msgspec

from sluicegate.gateway.errors import DependencyUnavailable
from sluicegate.gateway.tasks import PeriodicTask
from sluicegate.wire.metric_declaration import Aggregation, gauge

_INTERVAL: Final = 10.0
ServerClock = Callable[[], Awaitable[float | None]]
"""Returns a server's Unix time in seconds, or `None` if the server has no clock of its own.

Raises:
    DependencyUnavailable: the server does not respond.
"""


_SKEW: Final = gauge(
    "sluicegate_clock_skew_seconds",
    "Lower bound of the absolute difference between the machine's clock and the clock of "
    "`state_redis` or of the PostgreSQL `ledger`.",
    "dependency",
    over=Aggregation.MOST,
)


class ClockSkews(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the least possible difference of each server's clock from this machine's clock.

    Differences are in seconds.
    """

    state_redis: Annotated[float, _SKEW("state_redis")] = 0.0
    ledger: Annotated[float, _SKEW("ledger")] = 0.0


class ClockWatch:
    """Asks each server for its time every ten seconds.

    A server reads its clock at an unknown moment of the round trip. Its time is compared with the
    middle of the round trip. Half of the round trip is then subtracted from the difference, so that
    a slow server does not seem to have a wrong clock. If a server does not respond, its last known
    difference stays.
    """

    def __init__(
        self,
        *,
        state_redis: ServerClock,
        ledger: ServerClock,
        monotonic: Callable[[], float],
        wall: Callable[[], float] = time.time,  # noqa: TID251 - the clock that is measured
    ) -> None:
        self._servers: Mapping[str, ServerClock] = {"state_redis": state_redis, "ledger": ledger}
        self._monotonic = monotonic
        self._wall = wall
        self._skews = ClockSkews()
        self._measuring = PeriodicTask(
            self.measure, interval=_INTERVAL, failure="the clocks cannot be compared"
        )

    async def __aenter__(self) -> Self:
        self._measuring.wake()
        await self._measuring.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._measuring.__aexit__(*exc_info)

    def statistics(self) -> ClockSkews:
        """Return the last known differences."""
        return self._skews

    async def measure(self) -> None:
        """Compare this machine's clock with each server's clock."""
        await asyncio.gather(*(self._compare(name, ask) for name, ask in self._servers.items()))

    async def _compare(self, name: str, ask: ServerClock) -> None:
        began, wall = self._monotonic(), self._wall()
        try:
            theirs = await ask()
        except DependencyUnavailable:
            return  # another metric shows that the server does not respond
        if theirs is None:
            return
        half = (self._monotonic() - began) / 2
        skew = max(0.0, abs(theirs - (wall + half)) - half)
        self._skews = msgspec.structs.replace(self._skews, **{name: skew})
