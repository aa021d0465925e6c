"""Measures the gateway's processor time per missed item, one by one and coalesced.

The use case, the dispatcher and the client of backends run in this process, a stub backend in
another: only the gateway's work from the missed item to its answer is counted, without HTTP front
end, Redis and event log. With TLS, a second stub shows a certificate; both are measured in turns.
"""

import asyncio
import itertools
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

import click
import msgspec
import uvloop

from backends.protocol import ClassifyParameters, Task
from gateway.cache.base import NullTier
from gateway.cache.key import KeyMaker
from gateway.cache.result_cache import ResultCache
from gateway.config.document import CacheConfig, Document, RoutingConfig
from gateway.dispatch.dispatcher import Dispatcher
from gateway.inference.coalescing import Flights
from gateway.inference.inference import Inference
from gateway.inference.last_answers import LastAnswers
from gateway.routing.fleet import Fleet
from gateway.runtime.runtime import Runtime
from gateway.telemetry.tracing import Tracer
from gateway.types import (
    BackendId,
    Caller,
    Endpoint,
    InferenceRequest,
    KeyId,
    ModelName,
    Principal,
    RegionName,
    TenantId,
)
from gateway.upstream.http import HttpBackendClient
from gateway.upstream.tls import ClientTls
from loadtests.options import rounds
from loadtests.report import heading, print_table
from loadtests.turns import in_turns, middle
from testing.certificates import Authority
from testing.stub_process import stub_process

_MODEL = ModelName("stub")
_MEMORY = 64 * 1024 * 1024
_TIMEOUT = 10.0
_WAYS = {"one by one": 1, "coalesced, 8 callers": 8, "coalesced, 32 callers": 32}


class ItemCost(msgspec.Struct, frozen=True, kw_only=True):
    """Processor time of this process in microseconds per item, and items per second."""

    microseconds: float
    rate: float


@click.command()
@click.option("--count", default=5000, help="Items of each run.")
@rounds(5)
@click.option("--tls", "over_tls", is_flag=True, help="Measure over TLS, too.")
def measure(*, count: int, rounds: int, over_tls: bool) -> None:
    """Measure every way in turns, and print the median of each."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        authority = Authority(folder) if over_tls else None
        plain = stack.enter_context(stub_process())
        stubs: dict[str, tuple[str, Path | None]] = {"": (plain.url, None)}
        if authority is not None:
            stub = stack.enter_context(stub_process(certificate=authority.server()))
            stubs[", over TLS"] = (stub.url, authority.ca)
        seeds = itertools.count()
        variants = {
            name: partial(run, url, ca, count=count, seeds=seeds)
            for name, (url, ca) in stubs.items()
        }
        runs = in_turns(variants, rounds)
    heading(f"Dispatch, {count} items a run")
    lines = []
    for way in _WAYS:
        for name, each in runs.items():
            cost = middle([one[way] for one in each], lambda cost: cost.microseconds)
            lines.append((f"{way}{name}", f"{cost.microseconds:.0f} µs", f"{cost.rate:,.0f}"))
    print_table(("missed items", "processor time an item", "items/s"), lines)


def run(
    url: str, ca: Path | None = None, *, count: int, seeds: Iterator[int]
) -> dict[str, ItemCost]:
    """Return the cost of each way with the backend at `url`; `ca` signed its certificate."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(url, ca, count, next(seeds)))


async def _run(url: str, ca: Path | None, count: int, seed: int) -> dict[str, ItemCost]:
    endpoint = Endpoint(backend=BackendId("stub"), region=RegionName("eu"), url=url)
    clock = asyncio.get_running_loop().time
    fleet = Fleet(clock=clock, random=random.Random(seed))
    fleet.configure((endpoint,), RoutingConfig())
    async with (
        HttpBackendClient(tls=ClientTls(ca=ca)) as client,
        Dispatcher(fleet=fleet, client=client, reprobe=lambda _: None, clock=clock) as dispatcher,
    ):
        client.configure((endpoint,), RoutingConfig())
        fleet.observe(endpoint, await client.state(endpoint, time_limit=_TIMEOUT))
        entry, flights = CacheConfig(memory_bytes=_MEMORY), Flights()
        cache = ResultCache(entry, make_remote=lambda _: NullTier(), clock=time.time)
        inference = Inference(
            models=fleet,
            keys=KeyMaker(secret=b"bench"),
            cache=cache,
            last_answers=LastAnswers(cache=cache, flights=flights, runner=dispatcher),
            flights=flights,
            runner=dispatcher,
            tracer=Tracer(),
        )
        texts = (f"{seed} {number}" for number in itertools.count())
        await _cost(inference, texts, count=count // 4, callers=8)  # warms up
        return {
            way: await _cost(inference, texts, count=count, callers=callers)
            for way, callers in _WAYS.items()
        }


async def _cost(
    inference: Inference, texts: Iterator[str], *, count: int, callers: int
) -> ItemCost:
    """Request `count` items from `callers` callers, one item at a time each."""
    own = itertools.islice(texts, count)
    runtime = Runtime(generation=1, document=Document(), endpoints=(), epochs=MappingProxyType({}))
    principal = Principal(tenant=TenantId("bench"), key=KeyId("bench"))
    parameters = msgspec.msgpack.encode(ClassifyParameters())
    loop = asyncio.get_running_loop()

    async def ask() -> None:
        for text in own:
            request = InferenceRequest(
                task=Task.CLASSIFY,
                model=_MODEL,
                parameters=parameters,
                items=(msgspec.msgpack.encode(text),),
            )
            job = inference.prepare(request, principal, runtime)
            caller = Caller(principal=principal, deadline=loop.time() + _TIMEOUT)
            (outcome,) = (await inference.infer(job, caller)).outcomes
            if outcome.failure is not None:
                raise RuntimeError(outcome.failure.detail)

    used, started = time.process_time(), time.perf_counter()
    await asyncio.gather(*(ask() for _ in range(callers)))
    used, took = time.process_time() - used, time.perf_counter() - started
    return ItemCost(microseconds=used / count * 1e6, rate=count / took)
