"""A clock's distance from servers is measured, and slow servers are not taken for wrong clocks."""

import pytest

from sluicegate.gateway.app.clock_watch import ClockSkews, ClockWatch
from sluicegate.gateway.errors import DependencyUnavailable

pytestmark = pytest.mark.anyio
NOW = 1_800_000_000.0


class Servers:
    """Two servers with the right time, asked by a machine whose clock is `ahead` of it."""

    def __init__(self, *, ahead: float = 0.0, round_trip: float = 0.0) -> None:
        self.elapsed = 0.0
        self.round_trip = round_trip
        self.is_away = self.is_without_clock = False
        self.watch = ClockWatch(
            state_redis=self.time,
            ledger=self.ledger_time,
            monotonic=lambda: self.elapsed,
            wall=lambda: NOW + self.elapsed + ahead,
        )

    async def time(self) -> float:
        if self.is_away:
            raise DependencyUnavailable("it is away")
        self.elapsed += self.round_trip * 0.9
        found = NOW + self.elapsed
        self.elapsed += self.round_trip * 0.1
        return found

    async def ledger_time(self) -> float | None:
        return None if self.is_without_clock else await self.time()


@pytest.mark.parametrize("ahead", [3600.0, -3600.0])
async def test_a_clock_that_is_an_hour_off_is_measured(ahead: float) -> None:
    servers = Servers(ahead=ahead)

    await servers.watch.measure()

    assert servers.watch.statistics() == ClockSkews(state_redis=3600.0, ledger=3600.0)


async def test_a_slow_answer_is_no_skew() -> None:
    servers = Servers(round_trip=20.0)

    await servers.watch.measure()

    assert servers.watch.statistics() == ClockSkews()


async def test_a_skew_is_known_beyond_half_of_the_round_trip() -> None:
    servers = Servers(ahead=-3600.0, round_trip=20.0)

    await servers.watch.measure()

    assert 3590.0 < servers.watch.statistics().state_redis <= 3600.0


async def test_a_server_that_is_away_keeps_its_skew_and_one_without_a_clock_has_none() -> None:
    servers = Servers(ahead=5.0)
    servers.is_without_clock = True
    await servers.watch.measure()
    servers.is_away = True

    await servers.watch.measure()

    assert servers.watch.statistics() == ClockSkews(state_redis=5.0)
