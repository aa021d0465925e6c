"""Sends the same requests to real and to simulated backends, and compares latencies.

The real backends are processes, called over HTTP, whose executor takes time but no processor core.
In both cases, the gateway's fleet, prober and dispatcher run in this process.
"""

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random

import msgspec
import numpy as np

from loadtests.backend import RunningBackend, backend
from loadtests.report import heading, print_table
from loadtests.simulate.gateway import Caller, SimulatedGateway
from loadtests.simulate.virtual_time import run_virtual
from loadtests.simulate.world import World
from sluicegate.backends.executors.cost import CostModel
from sluicegate.gateway.routing.fleet import Fleet
from sluicegate.gateway.types import BackendId, Endpoint, RegionName
from sluicegate.gateway.upstream.http import HttpBackendClient
from sluicegate.gateway.upstream.tls import ClientTls
from testing.model_repository import WORDS, write_encoder

_BACKENDS = 3
_SECONDS = 110.0
_BASE, _TOKEN = 80e-3, 8e-3
_SHORTEST, _LONGEST = 10, 80
_DEADLINE = 10.0

Arrivals = list[tuple[float, int]]
"""For each request, when it is due and how many tokens it has."""


def validate(busy: float) -> None:
    """Print the latency percentiles of real and of simulated backends, busy for this share."""
    random, due, at = Random(1), Arrivals(), 0.0
    rate = busy * _BACKENDS / (_BASE + _TOKEN * (_SHORTEST + _LONGEST) / 2)
    while (at := at + random.expovariate(rate)) < _SECONDS:
        due.append((at, random.randint(_SHORTEST, _LONGEST)))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_encoder(folder, max_tokens=128)
        settings = {"provider": "paced", "paced_base": str(_BASE), "paced_token": str(_TOKEN)}
        running = [
            stack.enter_context(backend(folder, threads="1", **settings)) for _ in range(_BACKENDS)
        ]
        real = asyncio.run(_real(running, due))
    simulated = run_virtual(_simulated(due))
    heading(f"{_BACKENDS} backends, busy {busy:.0%}, {len(due):,} requests")
    print_table(
        ("", "p50 ms", "p95 ms", "p99 ms"),
        [
            (name, *(f"{1000 * np.percentile(latencies, share):.0f}" for share in (50, 95, 99)))
            for name, latencies in (("real", real), ("simulated", simulated))
        ],
    )


async def _real(running: Sequence[RunningBackend], due: Arrivals) -> list[float]:
    random = Random(2)
    endpoints = [
        Endpoint(backend=BackendId(f"b-{each.port}"), region=RegionName("eu"), url=each.url)
        for each in running
    ]
    fleet = Fleet(clock=asyncio.get_running_loop().time, random=random)
    fleet.configure(endpoints, fleet.routing)
    async with HttpBackendClient(tls=ClientTls()) as client:
        client.configure(endpoints, fleet.routing)
        caller = Caller(fleet=fleet, client=client, random=random)

        def body(tokens: int) -> bytes:
            # The tokenizer adds two tokens, for begin and end.
            return msgspec.msgpack.encode(" ".join(random.choices(WORDS, k=tokens - 2)))

        return await _latencies(caller, due, body)


async def _simulated(due: Arrivals) -> list[float]:
    random = Random(2)
    cost = CostModel(base=_BASE, padded=_TOKEN, square=0.0)
    world = World(("eu",), cost=cost, random=random, most=_BACKENDS)
    world.resize("eu", _BACKENDS, at_once=True)
    fleet = Fleet(clock=asyncio.get_running_loop().time, random=random)
    gateway = SimulatedGateway(
        "eu", world=world, fleet=fleet, round_trips={"eu": 2e-3}, random=random
    )
    gateway.follow()
    return await _latencies(gateway, due, gateway.body)


async def _latencies(caller: Caller, due: Arrivals, body: Callable[[int], bytes]) -> list[float]:
    """Send each request when it is due, and return the latencies of the answers."""
    loop = asyncio.get_running_loop()
    ends: asyncio.Queue[tuple[float, str, bytes]] = asyncio.Queue()
    async with caller.prober, caller.dispatcher:
        await caller.prober.wait_until_ready()
        began = loop.time()
        for at, tokens in due:
            await asyncio.sleep(max(0.0, began + at - loop.time()))
            caller.start(body(tokens), lambda *end: ends.put_nowait(end), _DEADLINE)
        ended = [await ends.get() for _ in due]
    return [seconds for seconds, code, _ in ended if not code]
