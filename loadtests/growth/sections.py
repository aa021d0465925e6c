"""Measures how the system's speed and memory change as one quantity grows.

Each section varies one quantity, such as the number of workers, models or API keys.
"""

import itertools
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any  # options of several types

import msgspec

from loadtests.growth.deployment import KEY, Deployment, deployment
from loadtests.growth.points import Point
from loadtests.measured import demo_models
from loadtests.turns import middle
from testing.loopback import get
from testing.raw_http import post
from testing.valkey import Valkey
from testing.waiting import wait_until

_CONNECTIONS = 32
_HITS = 100  # texts that are requested again and again
_FILL_ITEMS = 1024
_ROOM = 4 * 1024**3  # the memory tier must hold a million answers
_HEAD = "sentiment"
_TO_A_MILLION = (10, 100, 1000, 10_000, 100_000, 1_000_000)
_PREPARE = 300.0
"""The most seconds until a size is reached, by filling the cache or adding tenants."""
_CHANGES = 3
_LEAST_CHANGE = 2e-3  # seconds; about as long as polling for the change takes


class SectionRun(msgspec.Struct, frozen=True, kw_only=True):
    """The folder, the values of the growing quantity, and the options of one section's run."""

    folder: Path
    sizes: tuple[int, ...]
    seconds: float
    keep: Callable[[Point], None]

    def deployment(self, **options: Any) -> AbstractContextManager[Deployment]:
        """Run a deployment with these options in a new folder."""
        return deployment(Path(tempfile.mkdtemp(dir=self.folder)), **options)

    def measure(
        self,
        system: Deployment,
        curve: str,
        size: int,
        requests: Iterator[bytes],
        connections: int = _CONNECTIONS,
    ) -> None:
        """Measure a point of a curve and keep it, unless a request was refused."""
        try:
            point = system.measure(
                curve, size, requests, connections=connections, seconds=self.seconds
            )
        except (RuntimeError, TimeoutError) as error:
            print(f"{size:,}, {curve}: left out: {error!r}")
        else:
            self.keep(point)


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A quantity that grows: its name on the axis, its values, and the function to measure them."""

    axis: str
    sizes: tuple[int, ...]
    run: Callable[[SectionRun], None]


def _workers(run: SectionRun) -> None:
    """Measure hits and misses for each number of workers, which share this machine's cores."""
    for size in run.sizes:
        with run.deployment(workers=size) as system:
            # Every worker has a memory cache of its own, and connections reach all workers.
            system.fill(_hit_bodies() * 4 * size)
            run.measure(system, "memory hit", size, _hits())
            run.measure(system, "miss", size, _misses(f"workers {size}"))


def _backends(run: SectionRun) -> None:
    """Measure misses for each number of backends in one region."""
    with demo_models() as models:
        for size in run.sizes:
            with run.deployment(backends=size, models=models) as system:
                run.measure(system, "miss", size, _misses(f"backends {size}", models=[_HEAD]))


def _connections(run: SectionRun) -> None:
    """Measure hits and misses for each number of connections.

    Each connection has one request in flight.
    """
    with run.deployment() as system:
        system.fill(_hit_bodies())
        for size in run.sizes:
            run.measure(system, "memory hit", size, _hits(), size)
            run.measure(system, "miss", size, _misses(f"connections {size}"), size)


def _items(run: SectionRun) -> None:
    """Measure hits and misses for each number of items in a request."""
    with demo_models() as models, run.deployment(models=models) as system:
        for size in run.sizes:
            callers = max(1, min(8, 512 // size))  # so few rows that backends refuse none
            known = _body(_texts(f"known {size}", size), model=_HEAD)
            system.fill([known])
            run.measure(system, "memory hit", size, itertools.repeat(_request(known)), callers)
            misses = _misses(f"items {size}", items=size, models=[_HEAD])
            run.measure(system, "miss", size, misses, callers)


def _keys(run: SectionRun) -> None:
    """Measure hits for each number of cached results: first in memory, then only in Redis."""
    in_memory, in_redis = {"memory_bytes": _ROOM}, {"memory_enabled": False}
    with (
        Valkey() as valkey,
        run.deployment(document={"cache": in_memory}, cache=valkey) as memory,
        run.deployment(document={"cache": in_redis}, cache=valkey) as redis,
    ):
        for before, size in itertools.pairwise((0, *run.sizes)):
            if not _add_texts(memory, before, size):
                print(f"{size:,} keys were not there in {_PREPARE:g} s: left out")
                return
            run.measure(memory, "memory hit", size, _random_texts(size))
            run.measure(redis, "Redis hit", size, _random_texts(size))


def _tenants(run: SectionRun) -> None:
    """Measure hits of all tenants and of one, and the time to create a key, by number of tenants.

    Each tenant has one API key.
    """
    # Answers are shared between tenants, because otherwise each tenant would first miss each text.
    shared = {"models": {"stub": {"scope": "shared"}}}
    with run.deployment(document=shared) as system:
        for size in _with_keys(run, system, each_its_tenant=True):
            run.measure(system, "hit of one tenant", size, _hits())
            run.measure(system, "hit of any tenant", size, _hits_of_any_key(size))
            run.keep(_change(system, size))


def _api_keys(run: SectionRun) -> None:
    """Measure hits and the time to create an API key, for each number of API keys of one tenant."""
    with run.deployment() as system:
        for size in _with_keys(run, system, each_its_tenant=False):
            run.measure(system, "hit by any key", size, _hits_of_any_key(size))
            run.keep(_change(system, size))


def _with_keys(run: SectionRun, system: Deployment, *, each_its_tenant: bool) -> Iterator[int]:
    """Fill the cache, and yield each size once the system knows so many API keys."""
    system.fill(_hit_bodies())
    for before, size in itertools.pairwise((0, *run.sizes)):
        system.add_keys(list(map(_key, range(before, size))), each_its_tenant=each_its_tenant)
        _wait_for_key(system, _key(size - 1))
        time.sleep(1.0)
        yield size


def _models(run: SectionRun) -> None:
    """Measure misses for each number of models, all heads on the same encoder, in turns."""
    with demo_models() as demo:
        for size in run.sizes:
            models = Path(tempfile.mkdtemp(dir=run.folder))
            shutil.copytree(demo / "minilm", models / "minilm")
            names = [f"head-{number}" for number in range(size)]
            for name in names:
                shutil.copytree(demo / _HEAD, models / name)
            with run.deployment(models=models) as system:
                run.measure(system, "miss", size, _misses(f"models {size}", models=names))


SECTIONS = {
    "workers": Section(axis="gateway workers", sizes=(1, 2, 4), run=_workers),
    "backends": Section(axis="backends", sizes=(1, 2), run=_backends),
    "connections": Section(axis="connections", sizes=(1, 8, 64, 256, 1000, 2000), run=_connections),
    "items": Section(axis="items of a request", sizes=(1, 4, 16, 64, 256, 1024, 2048), run=_items),
    "keys": Section(axis="keys", sizes=_TO_A_MILLION, run=_keys),
    "api-keys": Section(axis="API keys", sizes=_TO_A_MILLION, run=_api_keys),
    "tenants": Section(axis="tenants", sizes=(1, 10, 100, 1000, 10_000, 100_000), run=_tenants),
    "models": Section(axis="models", sizes=(1, 10, 50, 100, 200), run=_models),
}


def _request(body: bytes, *, key: str = KEY) -> bytes:
    return post("/v1/classify", body, key=key, headers={"content-type": "application/json"})


def _body(texts: list[str], *, model: str = "stub") -> bytes:
    return msgspec.json.encode({"model": model, "input": texts})


def _texts(seed: str, count: int, first: int = 0) -> list[str]:
    return [f"the film {number:08} of {seed} was good" for number in range(first, first + count)]


def _key(number: int) -> str:
    return f"sk-growth-key-{number:07}"


def _hit_bodies() -> list[bytes]:
    return [_body([text]) for text in _texts("hits", _HITS)]


def _hits() -> Iterator[bytes]:
    return itertools.cycle(list(map(_request, _hit_bodies())))


def _hits_of_any_key(count: int) -> Iterator[bytes]:
    chooser, bodies = random.Random(count), _hit_bodies()
    while True:
        yield _request(chooser.choice(bodies), key=_key(chooser.randrange(count)))


def _misses(seed: str, *, items: int = 1, models: Sequence[str] = ("stub",)) -> Iterator[bytes]:
    for first, model in zip(itertools.count(0, items), itertools.cycle(models), strict=False):
        yield _request(_body(_texts(seed, items, first), model=model))


def _random_texts(count: int) -> Iterator[bytes]:
    chooser = random.Random(count)
    while True:
        yield _request(_body(_texts("keys", 1, chooser.randrange(count))))


def _add_texts(system: Deployment, first: int, last: int) -> bool:
    """Fill the cache up to `last` texts; return whether this took less than `_PREPARE` seconds."""
    until = time.monotonic() + _PREPARE
    while first < last and time.monotonic() < until:
        step = min(last, first + 40 * _FILL_ITEMS)
        starts = range(first, step, _FILL_ITEMS)
        system.fill(_body(_texts("keys", min(_FILL_ITEMS, step - at), at)) for at in starts)
        first = step
    return first >= last


def _wait_for_key(system: Deployment, key: str) -> None:
    url = f"http://127.0.0.1:{system.gateway.port}/v1/models"
    headers = {"authorization": f"Bearer {key}"}
    wait_until(
        lambda: get(url, headers=headers).is_success,
        within=_PREPARE,
        what="the key is known",
        every=0.2,
    )


def _change(system: Deployment, size: int) -> Point:
    """Return the gateway's processor time for the creation of an API key: the median of several."""
    idle = system.idle(2.0)
    changes = [_one_change(system, size, idle) for _ in range(_CHANGES)]
    return middle(changes, lambda one: one.processor["gateway"])


def _one_change(system: Deployment, size: int, idle: dict[str, float]) -> Point:
    key = f"sk-growth-change-{time.monotonic_ns()}"
    before = system.use()
    system.add_keys([key])
    _wait_for_key(system, key)
    after = system.use()
    took = after.at - before.at
    used = after.since(before)["gateway"] - idle["gateway"] * took
    return Point(
        curve="a key is added",
        size=size,
        rate=1 / took,
        processor={"gateway": max(_LEAST_CHANGE, used) * 1e6},
        idle={role: one * 1e6 for role, one in idle.items()},
        p99=took * 1e3,
        memory=after.memory,
    )
