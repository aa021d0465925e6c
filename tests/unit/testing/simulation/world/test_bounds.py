"""Tests how the queues of simulated processes are found and compared with their bounds."""

import asyncio
import time

from sluicegate.gateway.events.block import STREAM
from sluicegate.wire.byte_budget import SharedBytes
from testing.simulation import Simulation
from testing.simulation.redis_server.data import RedisData
from testing.simulation.redis_server.values import EntryId, Stream
from testing.simulation.world.bounds import Bounds, watch_objects


def test_a_queue_above_its_bound_and_at_rest_is_found(simulation: Simulation) -> None:
    machine = simulation.machine("a", address="10.0.0.1")
    bounds = Bounds({}, [])
    exceeded: list[dict[str, str]] = []
    left: list[list[str]] = []

    async def serve() -> None:
        budget = SharedBytes(10, exhausted=ValueError, clock=time.monotonic)
        for size in (0, 5, 11):
            budget.used_bytes = size
            await asyncio.sleep(1.0)
        await asyncio.sleep(1.0)

    async def main() -> None:
        serving = machine.start("serves", serve)
        await asyncio.sleep(0.5)
        for _ in range(3):
            exceeded.append(dict(bounds.exceeded()))
            left.append(list(bounds.left()))
            await asyncio.sleep(1.0)
        serving.kill()
        exceeded.append(dict(bounds.exceeded()))

    watch_objects()
    simulation.run(main)

    name = "held bytes in a/serves"
    assert exceeded == [{}, {}, {name: f"{name}: 11, above 10"}, {}]
    assert left == [[], [f"{name}, at rest: 5"], [f"{name}, at rest: 11"]]


def test_a_stream_above_its_bound_is_found() -> None:
    data = RedisData(clock=lambda: 0.0)
    bounds = Bounds({"eu-redis/state": data}, [])
    stream = data.make(STREAM.encode(), Stream)

    found = []
    for number in range(1, 1002):
        stream.append(EntryId(number, 0), [])
        found += [name for name, _ in bounds.exceeded()]

    assert found == ["blocks in the stream in eu-redis/state"]
