"""Runs `sluicegate up` under mixed load and measures whether resource use grows.

`findings` lists the conditions that must hold.
"""

import asyncio
import re
import shutil
import sqlite3
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import msgspec

from gateway.events.hit_run import ids_from
from loadtests.soak.changes import OperatorChanges
from loadtests.soak.load import MixedLoad, TenantKeys, kinds
from loadtests.soak.sampling import ProcessSample, Trend, sample, size_of, trend
from testing.system import TWO_REGIONS, System
from testing.waiting import wait_until

_CONFIG = Path(__file__).parents[2] / "config"
_WORKERS, _ASKERS = 2, 12
_SEGMENT_BYTES = 4 * 1024 * 1024
_CACHE_BYTES = 256 * 1024 * 1024
_MIB = 1024 * 1024
_TASKS = re.compile(r"^sluicegate_tasks (\S+)$", re.MULTILINE)
# Small, so that they are full before the warm-up ends.
_MEMORY_TIER, _ROW_CACHE = 4 * _MIB, 4 * _MIB
_SHARE, _BESIDE = 0.05, 4 * _MIB
"""How far resident memory may rise after the warm-up: 5 % and 4 MiB."""
_FILES = _TASK_ROOM = 8
_SEGMENTS = 4
"""Segments of an event log at most, of each worker: one is written, one shipped, one awaits billing
and one is being deleted."""


class ResourceUse(msgspec.Struct, frozen=True, kw_only=True):
    """The resource use of a run, by role, region and index of process."""

    memory: dict[str, Trend]
    files: dict[str, Trend]
    threads: dict[str, Trend]
    tasks: Trend
    """Of all workers together."""
    log_bytes: int
    """The most that event logs took on the disk."""
    cache_bytes: int
    """The most that the cache's Redis took by its own count."""


class SoakResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run. `left` are requests whose callers disconnected."""

    duration: float
    answers: Counter[tuple[str, int]]
    unexpected: Counter[tuple[str, int]]
    broken: Counter[str]
    changes: Counter[str]
    failed_changes: Counter[str]
    wear: ResourceUse
    answered: int
    left: int
    billed: int
    unbilled: int
    twice: int


def soak(folder: Path, *, models: Path, duration: float, every: float, look: float) -> SoakResult:
    """Run for `duration` seconds, with regular changes and samples.

    `every` is the time between changes, `look` between samples.
    """
    own_models = Path(shutil.copytree(models, folder / "models"))
    config = Path(shutil.copytree(_CONFIG, folder / "config"))
    document = config / "gateway.yaml"
    text = document.read_text().replace("memory_bytes: 67108864", f"memory_bytes: {_MEMORY_TIER}")
    document.write_text(text)
    environment = {
        "SLUICEGATE_BACKEND_ROW_CACHE_BYTES": str(_ROW_CACHE),
        # What is billed goes at once, so that what is not is seen to stay bounded.
        "SLUICEGATE_EVENTS_KEEP_BYTES": "0",
    }
    with System(
        folder / "data",
        models=own_models,
        workers=_WORKERS,
        config=config,
        environment=environment,
        arguments=TWO_REGIONS,
    ) as system:
        load = MixedLoad(system.port, kinds(_keys(system)))
        changes = OperatorChanges(system, config=config, models=own_models, billable=load.billable)
        looks = _SystemSamples(system)
        asyncio.run(_run(load, changes, looks, duration=duration, every=every, look=look))
        wait_until(
            lambda: load.billable <= _billed(system).keys(), within=60.0, what="all is billed"
        )
        billed = _billed(system)
    return SoakResult(
        duration=duration,
        answers=load.answers,
        unexpected=load.unexpected,
        broken=load.broken,
        changes=changes.made,
        failed_changes=changes.failed,
        wear=looks.wear(warm_after=duration / 3),
        answered=len(load.billable),
        left=load.left,
        billed=sum(billed.values()),
        unbilled=len(load.billable - billed.keys()),
        twice=sum(count > 1 for count in billed.values()),
    )


def findings(result: SoakResult, *, is_long: bool) -> Iterator[str]:
    """Yield every violation; growth is judged only if `is_long`."""
    for what, counted in (
        ("was answered otherwise than it may be", result.unexpected),
        ("got no answer", result.broken),
        ("did not come about", result.failed_changes),
    ):
        if counted:
            yield f"{what}: {dict(counted)}"
    if result.unbilled or result.twice:
        yield f"{result.unbilled} answers were not billed, {result.twice} twice"
    # Who left may have been answered all the same.
    if not result.answered <= result.billed <= result.answered + result.left:
        yield f"{result.billed} billed of {result.answered} answered and {result.left} left"
    if result.wear.log_bytes > _WORKERS * _SEGMENTS * _SEGMENT_BYTES:
        yield f"event logs took {result.wear.log_bytes / _MIB:.1f} MiB"
    if result.wear.cache_bytes > _CACHE_BYTES:
        yield f"the cache's Redis took {result.wear.cache_bytes / _MIB:.1f} MiB"
    if is_long:
        yield from _worn(result.wear)


def _worn(wear: ResourceUse) -> Iterator[str]:
    for name, memory in wear.memory.items():
        # It keeps what was answered, up to its own bound, which is looked at above.
        if name != "valkey-cache 0" and not memory.is_flat(share=_SHARE, beside=_BESIDE):
            yield f"{name}: memory rose by {memory.rise / _MIB:.1f} MiB"
    for what, trends in (("files", wear.files), ("threads", wear.threads)):
        for name, figure in trends.items():
            if not figure.is_flat(share=_SHARE, beside=_FILES):
                yield f"{name}: {what} rose by {figure.rise:.0f}"
    if not wear.tasks.is_flat(share=_SHARE, beside=_TASK_ROOM):
        yield f"tasks of the workers rose by {wear.tasks.rise:.0f}"


class _SystemSamples:
    """Samples every process and the shared resources."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._samples: defaultdict[str, list[ProcessSample]] = defaultdict(list)
        self._tasks: list[tuple[float, float]] = []
        self._log_bytes = self._cache_bytes = 0

    def look(self, at: float) -> None:
        """Take a sample."""
        for process in self._system.processes():
            taken = sample(process.pid, at)
            if taken is not None:
                region = f" {process.region}" if process.region else ""
                self._samples[f"{process.role}{region} {process.index}"].append(taken)
        events = size_of(self._system.data_dir / "events")
        self._log_bytes = max(self._log_bytes, events)
        with self._system.admin() as admin:
            redis = admin.get("/admin/cache").json()["redis"] or {}
            found = _TASKS.search(admin.get("/metrics").text)
        self._cache_bytes = max(self._cache_bytes, redis.get("used_memory", 0))
        if found is not None:
            self._tasks.append((at, float(found[1])))

    def wear(self, *, warm_after: float) -> ResourceUse:
        """Return the trends after `warm_after`."""

        def of(field: str) -> dict[str, Trend]:
            return {
                name: trend([(s.at, getattr(s, field)) for s in samples], warm_after=warm_after)
                for name, samples in self._samples.items()
            }

        return ResourceUse(
            memory=of("memory"),
            files=of("files"),
            threads=of("threads"),
            tasks=trend(self._tasks, warm_after=warm_after),
            log_bytes=self._log_bytes,
            cache_bytes=self._cache_bytes,
        )


async def _run(
    load: MixedLoad,
    changes: OperatorChanges,
    looks: _SystemSamples,
    *,
    duration: float,
    every: float,
    look: float,
) -> None:
    stop = asyncio.Event()
    started = time.monotonic()

    async def now_and_then(pause: float) -> bool:
        with_time_left = duration - (time.monotonic() - started)
        await asyncio.sleep(max(0.0, min(pause, with_time_left)))
        return time.monotonic() - started < duration

    async def change() -> None:
        while await now_and_then(every):
            await changes.next()

    async def watch() -> None:
        while await now_and_then(look):
            await asyncio.to_thread(looks.look, time.monotonic() - started)

    async with asyncio.TaskGroup() as group:
        for seed in range(_ASKERS):
            group.create_task(load.ask(seed, stop))
        group.create_task(change())
        await watch()
        stop.set()


def _keys(system: System) -> TenantKeys:
    """Create a tenant with narrow limits of every kind; the demo tenant has wide ones."""
    limits = [
        {"name": "narrow", "unit": "requests", "capacity": 30, "window": 2.0},
        {"name": "tokens", "unit": "tokens", "capacity": 2000, "window": 2.0},
        {"name": "places", "unit": "concurrent", "capacity": 2},
    ]
    with system.admin() as admin:
        admin.post("/admin/tenants", json={"id": "narrow", "limits": limits}).raise_for_status()
        made = admin.post("/admin/keys", json={"tenant": "narrow"}).raise_for_status()
    return TenantKeys(free=system.key, narrow=made.json()["key"])


def _billed(system: System) -> Counter[str]:
    """Return how often the ledger has each request."""
    ledger = system.data_dir / "ledger.db"
    with sqlite3.connect(f"file:{ledger}?mode=ro", uri=True) as connection:
        rows = connection.execute("SELECT id, requests FROM usage_events").fetchall()
    connection.close()
    return Counter(one for first, count in rows for one in ids_from(first, count))
