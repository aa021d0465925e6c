"""Runs scenes beside the matrix: total outage, unequal backends, stalls, a spike."""

import asyncio
import tempfile
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path

import msgspec

from loadtests.chaos.load import LoadGenerator, RequestOutcome
from loadtests.chaos.matrix import CAPACITY, PACE, percentile
from loadtests.chaos.system import BackendSpec, BatchPace, PacedBackend, chaos_system
from loadtests.faults.model import ModelOracle
from loadtests.faults.proxy import SOUND, ProxyFault

_TWO_REGIONS = (
    BackendSpec(name="eu-0", region="eu", pace=PACE),
    BackendSpec(name="us-0", region="us", pace=PACE),
)
_REFUSES = ProxyFault(refuses=True)
_GLANCE = 0.25
_SETTLING = 3.0


class OutageResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an outage of all regions and the return of one backend; times in seconds.

    `recovered` is when the last request that was refused was due, after the return. `shares` are
    the items a second that the backend was sent in each quarter of a second after it, `waits` the
    99th percentile of its answers in each second, and `offered` the requests a second then.
    """

    refusals: int
    with_retry_after: int
    slowest_refusal: float
    hits: int
    missed_hits: int
    recovered: float
    shares: list[float]
    offered: list[int]
    waits: list[float]
    wrong: int


async def total_outage(folder: Path, *, down: float, after: float, insists: bool) -> OutageResult:
    """Take both regions down for `down` seconds, and bring one backend back."""
    async with chaos_system(folder, _TWO_REGIONS) as system:
        judge = ModelOracle([system.backends["eu-0"].models])
        known = "good film about money"
        load = LoadGenerator(system.port, judge, rate=0.6 * CAPACITY, seed=1, insists=insists)
        hits = LoadGenerator(system.port, judge, rate=20.0, seed=2, repeat=known)
        clock = asyncio.get_running_loop().time
        async with load, hits:
            await asyncio.sleep(_SETTLING)
            fell = clock()
            await _all(system.backends.values(), _REFUSES)
            await asyncio.sleep(down)
            proxy = system.backends["us-0"].proxy
            await proxy.set_fault(SOUND)
            rose, before, shares = clock(), proxy.items, []
            while clock() < rose + after:
                await asyncio.sleep(_GLANCE)
                shares.append((proxy.items - before) / _GLANCE)
                before = proxy.items
    refused = [s for s in load.sent if s.status != 200 and s.due >= fell]
    # The probes need a moment to find out; what is refused then has been tried.
    known_down = [s for s in refused if fell + 1.0 <= s.due < rose]
    while_down = [s for s in hits.sent if fell <= s.due < rose]
    return OutageResult(
        refusals=len(known_down),
        with_retry_after=sum(s.status == 503 and bool(s.retry_after) for s in known_down),
        slowest_refusal=max(s.latency for s in known_down),
        hits=len(while_down),
        missed_hits=sum(s.status != 200 for s in while_down),
        recovered=max((s.due - rose for s in refused if s.due >= rose), default=0.0),
        shares=shares,
        offered=[len(_within(load.sent, rose + n)) for n in range(int(after))],
        waits=[
            percentile([s for s in _within(load.sent, rose + n) if s.status == 200], 0.99)
            for n in range(int(after))
        ],
        wrong=_wrong([*load.sent, *hits.sent]),
    )


async def unequal_backends(folder: Path, *, duration: float) -> dict[str, float]:
    """Offer 90 % of two backends' capacity, one three times faster; return the items of each."""
    slow = BatchPace(base=3 * PACE.base, token=3 * PACE.token)
    specs = (
        BackendSpec(name="fast", region="eu", pace=PACE),
        BackendSpec(name="slow", region="eu", pace=slow),
    )
    async with chaos_system(folder, specs) as system:
        judge = ModelOracle([system.backends["fast"].models])
        async with LoadGenerator(system.port, judge, rate=0.9 * CAPACITY * 4 / 3, seed=1) as load:
            await asyncio.sleep(_SETTLING)
            before = {name: b.proxy.items for name, b in system.backends.items()}
            await asyncio.sleep(duration)
            items = {
                name: float(b.proxy.items - before[name]) for name, b in system.backends.items()
            }
    late = load.sent[len(load.sent) // 4 :]
    return items | {
        "p50": percentile(late, 0.5),
        "p99": percentile(late, 0.99),
        "errors": float(sum(s.status != 200 for s in load.sent)),
    }


async def stalls(folder: Path, *, duration: float, hedge_share: float) -> dict[str, float]:
    """Let one of two backends stall for a second in 5 % of its calls; return latencies."""
    specs = tuple(BackendSpec(name=f"eu-{n}", region="eu", pace=PACE) for n in range(2))
    routing = {"hedge_share": hedge_share, "spill_after": 1.0}
    async with chaos_system(folder, specs, routing=routing) as system:
        judge = ModelOracle([system.backends["eu-0"].models])
        await system.backends["eu-0"].proxy.set_fault(ProxyFault(stalls=0.05, stall=1.0))
        async with LoadGenerator(system.port, judge, rate=0.3 * 2 * CAPACITY, seed=1) as load:
            begun = asyncio.get_running_loop().time()
            await asyncio.sleep(_SETTLING + duration)
        await asyncio.sleep(2.5)
        done = await system.dispatched()
        calls = sum(backend.proxy.items for backend in system.backends.values())
    counted = [s for s in load.sent if s.due >= begun + _SETTLING]
    return {
        "p50": percentile(counted, 0.5),
        "p99": percentile(counted, 0.99),
        "hedged": done.hedged / (done.computed + done.failed),
        "extra": calls / len(load.sent) - 1.0,
        "errors": float(sum(s.status != 200 for s in counted)),
        "wrong": float(_wrong(counted)),
    }


class SpikeResult(msgspec.Struct, frozen=True, kw_only=True):
    """Items per second of the overflow pool before, during and after a tenfold spike.

    `first_used` is how long after its begin the pool was used, `idle_again` how long after its end
    it was no more.
    """

    before: int
    during: int
    first_used: float
    idle_again: float
    errors: int


async def spike(folder: Path, *, calm: float, busy: float) -> SpikeResult:
    """Send a fifth of the capacity, ten times that, and a fifth again."""
    specs = (
        BackendSpec(name="eu-0", region="eu", pace=PACE),
        BackendSpec(name="spare-0", region="eu", pace=PACE, overflow=True),
        BackendSpec(name="spare-1", region="eu", pace=PACE, overflow=True),
    )
    rate = 0.2 * CAPACITY
    async with chaos_system(folder, specs) as system:
        judge = ModelOracle([system.backends["eu-0"].models])
        spares = [system.backends[f"spare-{n}"].proxy for n in range(2)]
        clock = asyncio.get_running_loop().time

        def used() -> int:
            return sum(proxy.items for proxy in spares)

        uses: list[tuple[float, int]] = []

        async def watch(seconds: float) -> None:
            end = clock() + seconds
            while clock() < end:
                await asyncio.sleep(0.02)
                uses.append((clock(), used()))

        async with LoadGenerator(system.port, judge, rate=rate, seed=1) as load:
            await watch(calm)
            before, begun = used(), clock()
            async with LoadGenerator(system.port, judge, rate=9 * rate, seed=2) as more:
                await watch(busy)
                ended = clock()
            await watch(calm)
    growing = [at for (at, n), (_, last) in zip(uses[1:], uses, strict=False) if n > last]
    return SpikeResult(
        before=before,
        during=used() - before,
        first_used=min((at for at in growing if at >= begun), default=float("inf")) - begun,
        idle_again=max([ended, *growing]) - ended,
        errors=sum(s.status != 200 for s in [*load.sent, *more.sent]),
    )


async def _all(backends: Iterable[PacedBackend], fault: ProxyFault) -> None:
    await asyncio.gather(*(backend.proxy.set_fault(fault) for backend in backends))


def _within(sent: Sequence[RequestOutcome], second: float) -> list[RequestOutcome]:
    return [s for s in sent if second <= s.due < second + 1.0]


def _wrong(sent: Sequence[RequestOutcome]) -> int:
    return sum(s.status == 200 and not s.is_right for s in sent)


def measure(only: Sequence[str] = ()) -> None:
    """Run the scenes and print their results."""
    scenes: dict[str, Callable[[Path], Coroutine[object, object, object]]] = {
        "all down": lambda folder: total_outage(folder, down=4.0, after=6.0, insists=False),
        "all down, callers insist": lambda folder: total_outage(
            folder, down=4.0, after=8.0, insists=True
        ),
        "unlike": lambda folder: unequal_backends(folder, duration=15.0),
        "stalls, no hedging": lambda folder: stalls(folder, duration=15.0, hedge_share=0.0),
        "stalls, hedging": lambda folder: stalls(folder, duration=15.0, hedge_share=0.05),
        "spike": lambda folder: spike(folder, calm=4.0, busy=6.0),
    }
    for name, scene in scenes.items():
        if only and not name.startswith(tuple(only)):
            continue
        with tempfile.TemporaryDirectory() as folder:
            print(f"{name}: {asyncio.run(scene(Path(folder)))}", flush=True)
