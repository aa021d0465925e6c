"""Sends the same requests to real backends and to simulated ones, and compares latencies.

Real are the processes of the backends, with the executor that takes time but no core, their HTTP,
and the gateway's fleet, prober, dispatcher and client in this process.
"""

import asyncio
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random

import msgspec
import numpy as np

from backends.executors.cost import CostModel
from backends.protocol import EmbedParameters, Task
from gateway.config.document import RoutingConfig
from gateway.dispatch.dispatcher import Dispatcher
from gateway.dispatch.prober import Prober
from gateway.dispatch.work import Outcomes, Work, WorkItem
from gateway.routing.fleet import Fleet
from gateway.types import BackendId, Endpoint, RegionName
from gateway.upstream.http import HttpBackendClient
from gateway.upstream.tls import ClientTls
from loadtests.backend import backend
from loadtests.simulate.gateway import SimulatedGateway
from loadtests.simulate.scenario import Scenario
from loadtests.simulate.virtual_time import run_virtual
from loadtests.simulate.world import ScalingRule, World
from testing.model_repository import WORDS, write_encoder

_BASE, _TOKEN = 80e-3, 8e-3
_SHORTEST, _LONGEST = 10, 80
_DEADLINE = 10.0


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """A request of one text, due `at`, with so many tokens."""

    at: float
    tokens: int


def arrivals(*, backends: int, busy: float, seconds: float, seed: int) -> list[Arrival]:
    """Return requests at random times that would keep that share of the backends busy alone."""
    random = Random(seed)
    mean = _BASE + _TOKEN * (_SHORTEST + _LONGEST) / 2
    found, at = list[Arrival](), 0.0
    while (at := at + random.expovariate(busy * backends / mean)) < seconds:
        found.append(Arrival(at=at, tokens=random.randint(_SHORTEST, _LONGEST)))
    return found


def validate(*, backends: int, busy: float, seconds: float) -> None:
    """Print the percentiles of both."""
    due = arrivals(backends=backends, busy=busy, seconds=seconds, seed=1)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_encoder(folder, max_tokens=128)
        settings = {"provider": "paced", "paced_base": str(_BASE), "paced_token": str(_TOKEN)}
        running = [
            stack.enter_context(backend(folder, threads="1", **settings)) for _ in range(backends)
        ]
        real = asyncio.run(_real([each.port for each in running], due))
    simulated = run_virtual(_simulated(backends, due))
    print(f"\n{backends} backends, busy {busy:.0%}, {len(due):,} requests\n")
    print("| | p50 ms | p95 ms | p99 ms |\n|---|---|---|---|")
    for name, latencies in (("real", real), ("simulated", simulated)):
        figures = " | ".join(f"{1000 * np.percentile(latencies, p):.0f}" for p in (50, 95, 99))
        print(f"| {name} | {figures} |")


async def _send(due: list[Arrival], send: Callable[[Arrival], None], left: set[float]) -> None:
    """Send each when it is due, and wait until none is left."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    for each in due:
        left.add(each.at)
        await asyncio.sleep(max(0.0, began + each.at - loop.time()))
        send(each)
    while left:  # noqa: ASYNC110 - the last answers
        await asyncio.sleep(0.05)


async def _real(ports: list[int], due: list[Arrival]) -> list[float]:
    loop, random = asyncio.get_running_loop(), Random(2)
    endpoints = [
        Endpoint(
            backend=BackendId(f"b-{port}"),
            region=RegionName("eu"),
            url=f"http://127.0.0.1:{port}",
        )
        for port in ports
    ]
    fleet, routing = Fleet(clock=loop.time, random=random), RoutingConfig()
    fleet.configure(endpoints, routing)
    latencies, left = list[float](), set[float]()
    async with HttpBackendClient(tls=ClientTls()) as client:
        client.configure(endpoints, routing)
        async with (
            Prober(fleet=fleet, client=client, random=random) as prober,
            Dispatcher(
                fleet=fleet, client=client, reprobe=prober.probe_soon, clock=loop.time
            ) as dispatcher,
        ):
            await prober.wait_until_ready()
            model = fleet.model("tiny")
            if model is None:
                raise RuntimeError("no backend serves the model")

            def send(each: Arrival) -> None:
                started = loop.time()

                def settle(outcomes: Outcomes) -> None:
                    if outcomes[0][1].failure is None:
                        latencies.append(loop.time() - started)
                    left.discard(each.at)

                # Two tokens are of the tokenizer: begin and end.
                words = random.choices(WORDS, k=each.tokens - 2)
                body = msgspec.msgpack.encode(" ".join(words))
                work = Work(
                    model=model,
                    task=Task.EMBED,
                    parameters=msgspec.msgpack.encode(EmbedParameters()),
                    items=(WorkItem(index=0, body=body, scope="tenant:a", affinity=body),),
                    atomic=True,
                )
                dispatcher.start(work, deadline=started + _DEADLINE, settle=settle)

            await _send(due, send, left)
    return latencies


async def _simulated(backends: int, due: list[Arrival]) -> list[float]:
    random = Random(2)
    world = World(
        ("eu",),
        cost=CostModel(base=_BASE, padded=_TOKEN, square=0.0),
        random=random,
        rule=ScalingRule(),
        most=backends,
    )
    world.resize("eu", backends, at_once=True)
    gateway = SimulatedGateway(
        "eu",
        scenario=Scenario(deadline=_DEADLINE),
        world=world,
        fleet=Fleet(clock=asyncio.get_running_loop().time, random=random),
        round_trips={"eu": 2e-3},
        random=random,
    )
    gateway.follow()
    latencies, left = list[float](), set[float]()

    def send(each: Arrival) -> None:
        def ended(seconds: float, code: str, _region: str) -> None:
            if not code:
                latencies.append(seconds)
            left.discard(each.at)

        gateway.send(ended, tokens=each.tokens)

    async with gateway.prober, gateway.dispatcher:
        await gateway.prober.wait_for_first_probes()
        await _send(due, send, left)
    return latencies
