"""Connections end whose peer takes nothing of its answers; those of slow peers do not."""

import pytest

from gateway.http.connection_timeouts import ConnectionTimeouts
from tests.support.entry_points import EntryPoint

pytestmark = pytest.mark.anyio
_IDLE = ConnectionTimeouts().idle


@pytest.fixture(params=["fast lane", "application"])
async def door(anyio_backend: str, request: pytest.FixtureRequest) -> EntryPoint:
    return EntryPoint(fast=request.param == "fast lane")


@pytest.mark.parametrize("is_closed", [False, True])
async def test_a_peer_that_takes_nothing_is_given_up(door: EntryPoint, *, is_closed: bool) -> None:
    door.transport.unsent_bytes = 100
    if is_closed:
        door.transport.close()

    door.protocol.abort_if_write_stalled(1000.0)
    door.protocol.abort_if_write_stalled(1000.0 + _IDLE)
    early = door.transport.is_aborted
    door.protocol.abort_if_write_stalled(1000.1 + _IDLE)

    assert (early, door.transport.is_aborted) == (False, True)


async def test_a_peer_that_takes_little_at_a_time_is_left_alone(door: EntryPoint) -> None:
    for number in range(10):
        door.transport.unsent_bytes = 100 - number
        door.protocol.abort_if_write_stalled(number * _IDLE)
    door.transport.unsent_bytes = 0
    for number in range(10, 20):
        door.protocol.abort_if_write_stalled(number * _IDLE)

    assert not door.transport.is_aborted
