"""Connections end whose peer takes nothing of its answers; those of slow peers do not."""

import pytest

from sluicegate.wire.http.timeouts import ConnectionTimeouts
from tests.support.entry_points import EntryPoint

pytestmark = pytest.mark.anyio
_IDLE = ConnectionTimeouts().idle


@pytest.fixture(params=["fast path", "application"])
async def entry(anyio_backend: str, request: pytest.FixtureRequest) -> EntryPoint:
    return EntryPoint(fast=request.param == "fast path")


@pytest.mark.parametrize("is_closed", [False, True])
async def test_a_peer_that_takes_nothing_is_given_up(entry: EntryPoint, *, is_closed: bool) -> None:
    entry.transport.unsent_bytes = 100
    if is_closed:
        entry.transport.close()

    entry.protocol.check(1000.0)
    entry.protocol.check(1000.0 + _IDLE)
    early = entry.transport.is_aborted
    entry.protocol.check(1000.1 + _IDLE)

    assert (early, entry.transport.is_aborted) == (False, True)


async def test_a_peer_that_takes_little_at_a_time_is_left_alone(entry: EntryPoint) -> None:
    for number in range(10):
        entry.transport.unsent_bytes = 100 - number
        entry.protocol.check(number * _IDLE)
    entry.transport.unsent_bytes = 0
    for number in range(10, 20):
        entry.protocol.check(number * _IDLE)

    assert not entry.transport.is_aborted
