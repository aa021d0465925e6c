"""Runs the chaos matrix: one fault after another, of one backend and of a whole region."""

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from loadtests.chaos.faults import BACKEND_FAULTS, BackendFault, inject, undo
from loadtests.chaos.load import LoadGenerator, RequestOutcome
from loadtests.chaos.system import BackendSpec, BatchPace, ChaosSystem, chaos_system
from loadtests.faults.model import ModelOracle

PACE = BatchPace(base=2e-3, token=5.8e-4)
# Of every text, its two special tokens included.
_TOKENS = 10
# Rows of a full batch.
_ROWS = 16
CAPACITY = _ROWS / (PACE.base + PACE.token * _TOKENS * _ROWS)
"""Items a second that a backend can do at its best."""
SHARE = 0.6
_SPECS = tuple(
    BackendSpec(name=f"{region}-{number}", region=region, pace=PACE)
    for region in ("eu", "us")
    for number in range(2)
)
WINDOW = 2.0
"""Seconds after the fault that do not count for the 99th percentile."""
_HASTE = 0.3
_HASTY_RATE = 5.0
# Workers tell the state Redis of their counts this often, and a little more.
_TOLD = 2.5
_WARM_UP = 3.0

Extent = Literal["one", "region"]


class CaseResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a case: latencies in seconds, `errors` and `attempts` per item sent."""

    fault: str
    extent: Extent
    rate: float
    items: int
    wrong: int
    errors: float
    quiet: float
    after: float
    attempts: float
    hastiest: float
    """The longest that a request with 300 ms to live took."""


async def run_case(
    folder: Path, fault: BackendFault, extent: Extent, *, quiet: float, faulty: float
) -> CaseResult:
    """Run the load for `quiet` seconds, inject the fault, and go on for `faulty` seconds."""
    async with chaos_system(folder, _SPECS) as system:
        victims = system.of_region("eu")[: 1 if extent == "one" else 2]
        rate = SHARE * CAPACITY * (len(_SPECS) - len(victims))
        judges = [ModelOracle([victim.models]) for victim in system.backends.values()]
        load = LoadGenerator(system.port, judges[0], rate=rate, seed=1)
        hasty = LoadGenerator(system.port, judges[0], rate=_HASTY_RATE, seed=2, timeout=_HASTE)
        async with load, hasty:
            begun = asyncio.get_running_loop().time()
            await asyncio.sleep(_WARM_UP + quiet)
            struck = asyncio.get_running_loop().time()
            await inject(fault, victims)
            judges[0].learn()
            await asyncio.sleep(faulty)
        attempts = await attempts_per_item(system)
        await undo(fault, victims)
    before = [s for s in load.sent if begun + _WARM_UP <= s.due < struck]
    after = [s for s in load.sent if s.due >= struck + WINDOW]
    counted = [s for s in load.sent if s.due >= begun + _WARM_UP]
    answered = [s for s in load.sent + hasty.sent if s.status == 200]
    return CaseResult(
        fault=fault.name,
        extent=extent,
        rate=rate,
        items=len(counted),
        wrong=sum(not s.is_right for s in answered),
        errors=sum(s.status != 200 for s in counted) / len(counted),
        quiet=percentile(before, 0.99),
        after=percentile(after, 0.99),
        attempts=attempts,
        hastiest=max(s.latency for s in hasty.sent),
    )


async def attempts_per_item(system: ChaosSystem) -> float:
    """Return the attempts per item since the start, retries and hedges included."""
    await asyncio.sleep(_TOLD)
    done = await system.dispatched()
    first = done.computed + done.failed
    return (first + done.retried + done.hedged) / first


def percentile(sent: Sequence[RequestOutcome], share: float) -> float:
    """Return the latency that `share` of the requests did not exceed."""
    latencies = sorted(s.latency for s in sent)
    return latencies[min(len(latencies) - 1, int(share * len(latencies)))] if latencies else 0.0


def measure(
    *, quiet: float, faulty: float, only: Sequence[str] = (), extents: Sequence[Extent] = ()
) -> list[CaseResult]:
    """Run the cases (those whose names begin with one of `only`) and print a line of each."""
    print(_LINE.format(*_HEAD))
    print("|" + "---|" * len(_HEAD))
    verdicts = []
    for fault in BACKEND_FAULTS:
        if only and not fault.name.startswith(tuple(only)):
            continue
        for extent in extents or ("one", "region"):
            with tempfile.TemporaryDirectory() as folder:
                verdict = asyncio.run(
                    run_case(Path(folder), fault, extent, quiet=quiet, faulty=faulty)
                )
            print(line(verdict), flush=True)
            verdicts.append(verdict)
    return verdicts


_HEAD = (
    *("fault", "of", "items/s", "items", "wrong", "errors", "p99 quiet", "p99 after", "times"),
    *("attempts per item", "longest of 300 ms"),
)
_LINE = "| " + " | ".join(["{}"] * len(_HEAD)) + " |"


def line(verdict: CaseResult) -> str:
    """Return a case as a line of a table."""
    v = verdict
    return _LINE.format(
        v.fault,
        "one backend" if v.extent == "one" else "a region",
        f"{v.rate:.0f}",
        v.items,
        v.wrong,
        f"{100 * v.errors:.2f} %",
        f"{1000 * v.quiet:.0f} ms",
        f"{1000 * v.after:.0f} ms",
        f"{v.after / v.quiet:.2f}",
        f"{v.attempts:.3f}",
        f"{1000 * v.hastiest:.0f} ms",
    )
