"""Measures how the system behaves as one of its sizes grows, a section for each size."""

import contextlib
import itertools
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import msgspec

from backends.model_tools.demo.build import build_demo_models
from loadtests.growth.deployment import Deployment, deployment, key_of, request
from loadtests.growth.points import Measured
from testing.valkey import Valkey
from testing.waiting import wait_until

_CONNECTIONS = 32
_HITS = 100  # texts that are asked for again and again
_FILL_ITEMS = 1024
_ROOM = 4 * 1024**3  # of the memory tier, for a million answers
_HEAD = "sentiment"
_TO_A_MILLION = (10, 100, 1000, 10_000, 100_000, 1_000_000)
_PREPARE = 300.0
"""Seconds that may pass until a size is reached, by filling or by adding tenants."""
_CHANGES = 3
_LEAST_CHANGE = 2e-3  # seconds: polling for the change takes as much


class SectionRun(msgspec.Struct, frozen=True, kw_only=True):
    """What a section is given. `wants` tells whether a point of a curve is to be measured."""

    folder: Path
    sizes: tuple[int, ...]
    seconds: float
    wants: Callable[[str, int], bool]
    keep: Callable[[str, int, Measured], None]

    def place(self) -> Path:
        """Return a new folder that is not there yet."""
        return Path(tempfile.mkdtemp(dir=self.folder)) / "deployment"

    def wanted(self, *curves: str) -> Iterator[int]:
        """Yield the sizes of which a curve is wanted."""
        for size in self.sizes:
            if any(self.wants(curve, size) for curve in curves):
                yield size

    def measure(
        self,
        system: Deployment,
        curve: str,
        size: int,
        requests: Iterator[bytes],
        connections: int = _CONNECTIONS,
    ) -> None:
        """Measure a point and keep it, unless it is there already or something was refused."""
        if not self.wants(curve, size):
            return
        try:
            found = system.measure(requests, connections=connections, seconds=self.seconds)
        except (RuntimeError, TimeoutError) as error:
            print(f"{size:,}, {curve}: left out: {error!r}")
        else:
            self.keep(curve, size, found)


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A size that grows: its name on the axis, its values, and what measures them."""

    axis: str
    sizes: tuple[int, ...]
    run: Callable[[SectionRun], None]


def _workers(run: SectionRun) -> None:
    """Hits and misses by gateway workers, which share the cores there are."""
    for size in run.wanted("memory hit", "miss"):
        with deployment(run.place(), workers=size) as system:
            # Every worker has a memory of its own, and connections spread over all of them.
            _fill(system, times=4 * size)
            run.measure(system, "memory hit", size, _hits())
            run.measure(system, "miss", size, _misses(f"workers {size}"))


def _backends(run: SectionRun) -> None:
    """Misses by backends of one region."""
    models = _demo_models(run)
    for size in run.wanted("miss"):
        with deployment(run.place(), backends=size, models=models) as system:
            run.measure(system, "miss", size, _misses(f"backends {size}", model=_HEAD))


def _connections(run: SectionRun) -> None:
    """Hits and misses by connections, each with a request at a time."""
    with deployment(run.place()) as system:
        _fill(system)
        for size in run.wanted("memory hit", "miss"):
            run.measure(system, "memory hit", size, _hits(), size)
            run.measure(system, "miss", size, _misses(f"connections {size}"), size)


def _items(run: SectionRun) -> None:
    """Hits and misses by items of a request."""
    with deployment(run.place(), models=_demo_models(run)) as system:
        for size in run.wanted("memory hit", "miss"):
            callers = max(1, min(8, 512 // size))  # so few rows that a backend refuses none
            known = [_body(_texts(f"known {size}", size), model=_HEAD)]
            system.send_once([request(known[0])], connections=1)
            run.measure(system, "memory hit", size, itertools.cycle(map(request, known)), callers)
            misses = _misses(f"items {size}", items=size, model=_HEAD)
            run.measure(system, "miss", size, misses, callers)


def _keys(run: SectionRun) -> None:
    """Hits by keys in memory, and in Redis with the memory tier off."""
    memory, redis = "memory hit", "Redis hit"
    if not any(run.wanted(memory, redis)):
        return
    with contextlib.ExitStack() as stack:
        valkey = stack.enter_context(Valkey())
        first, other = (
            stack.enter_context(
                deployment(run.place(), document={"cache": cache}, cache_redis=valkey)
            )
            for cache in ({"memory_bytes": _ROOM}, {"memory_enabled": False})
        )
        there = 0
        for size in run.sizes:
            if not _add_keys(first, there, size, within=_PREPARE):
                print(f"{size:,} keys were not there in {_PREPARE:g} s: left out")
                return
            there = size
            run.measure(first, memory, size, _random_keys(size))
            run.measure(other, redis, size, _random_keys(size))


def _tenants(run: SectionRun) -> None:
    """Hits by tenants with a key each: of any tenant, of one among them, and a change of a key."""
    _by_keys(run, "hit of any tenant", one="hit of one tenant")


def _api_keys(run: SectionRun) -> None:
    """Hits by API keys of one tenant, and a change of a key."""
    _by_keys(run, "hit by any key")


def _by_keys(run: SectionRun, everyone: str, *, one: str = "") -> None:
    """Measure hits of everyone and, with tenants of their own, of one; and a change of a key."""
    change, there = "a key is added", 0
    if not any(run.wanted(everyone, change, *([one] if one else []))):
        return
    # Answers are shared: else each tenant would miss each text first.
    shared = {"models": {"stub": {"scope": "shared"}}} if one else None
    with deployment(run.place(), document=shared) as system:
        _fill(system)
        for size in run.sizes:
            system.add_keys(there, size, each_its_tenant=bool(one))
            there = size
            _wait_for_key(system, key_of(size - 1), within=_PREPARE)
            time.sleep(1.0)
            if one:
                run.measure(system, one, size, _hits())
            run.measure(system, everyone, size, _hits_of_any_key(size))
            if run.wants(change, size):
                run.keep(change, size, _change(system))


def _models(run: SectionRun) -> None:
    """Misses by models, heads of one encoder, each request for any of them."""
    demo = _demo_models(run)
    for size in run.wanted("miss"):
        models = Path(tempfile.mkdtemp(dir=run.folder))
        shutil.copytree(demo / "minilm", models / "minilm")
        for number in range(size):
            shutil.copytree(demo / _HEAD, models / f"head-{number}")
        with deployment(run.place(), models=models) as system:
            run.measure(system, "miss", size, _misses_of_models(size))


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


def _demo_models(run: SectionRun) -> Path:
    models = run.folder / "demo"
    if not models.exists():
        build_demo_models(models, print)
    return models


def _body(texts: list[str], *, model: str = "stub") -> bytes:
    return msgspec.json.encode({"model": model, "input": texts})


def _texts(seed: str, count: int, first: int = 0) -> list[str]:
    return [f"the film {number:08} of {seed} was good" for number in range(first, first + count)]


def _hits() -> Iterator[bytes]:
    return itertools.cycle([request(_body([text])) for text in _texts("hits", _HITS)])


def _hits_of_any_key(count: int) -> Iterator[bytes]:
    chooser = random.Random(count)
    bodies = [_body([text]) for text in _texts("hits", _HITS)]
    while True:
        yield request(chooser.choice(bodies), key=key_of(chooser.randrange(count)))


def _misses(seed: str, *, items: int = 1, model: str = "stub") -> Iterator[bytes]:
    for number in itertools.count(0, items):
        yield request(_body(_texts(seed, items, number), model=model))


def _misses_of_models(count: int) -> Iterator[bytes]:
    for number in itertools.count():
        text = _texts(f"models {count}", 1, number)
        yield request(_body(text, model=f"head-{number % count}"))


def _random_keys(count: int) -> Iterator[bytes]:
    chooser = random.Random(count)
    while True:
        yield request(_body(_texts("keys", 1, chooser.randrange(count))))


def _fill(system: Deployment, *, times: int = 1) -> None:
    system.send_once([request(_body([text])) for text in _texts("hits", _HITS)] * times)


def _add_keys(system: Deployment, first: int, last: int, *, within: float) -> bool:
    """Fill the cache up to `last` keys; return whether that was done in time."""
    until = time.monotonic() + within
    while first < last and time.monotonic() < until:
        step = min(last, first + 40 * _FILL_ITEMS)
        starts = range(first, step, _FILL_ITEMS)
        texts = (_texts("keys", min(_FILL_ITEMS, step - at), at) for at in starts)
        system.send_once([request(_body(each)) for each in texts])
        first = step
    return first >= last


def _wait_for_key(system: Deployment, key: str, *, within: float) -> None:
    url, headers = f"http://127.0.0.1:{system.port}/v1/models", {"authorization": f"Bearer {key}"}
    with httpx.Client() as client:
        wait_until(
            lambda: client.get(url, headers=headers).is_success,
            within=within,
            what="the key is known",
            every=0.2,
        )


def _change(system: Deployment) -> Measured:
    """Return the cost of one new key for the gateway: the median of some, by processor time."""
    idle = system.idle(2.0)
    found = sorted(_changes(system, idle), key=lambda one: one.processor["gateway"])
    return found[len(found) // 2]


def _changes(system: Deployment, idle: dict[str, float]) -> Iterator[Measured]:
    for number in range(_CHANGES):
        key = f"sk-growth-change-{number}-{time.monotonic_ns()}"
        before = system.use()
        system.add_key(key)
        _wait_for_key(system, key, within=60)
        after = system.use()
        took = after.at - before.at
        used = after.roles["gateway"] - before.roles["gateway"] - idle["gateway"] * took
        yield Measured(
            rate=1 / took,
            processor={"gateway": max(_LEAST_CHANGE, used) * 1e6},
            idle={role: one * 1e6 for role, one in idle.items()},
            p50=took * 1e3,
            p99=took * 1e3,
            memory=after.memory,
            others=0.0,
        )
