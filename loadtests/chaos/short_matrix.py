"""Runs the chaos matrix in short: every fault for a moment, on one running system."""

import asyncio
from pathlib import Path

import msgspec

from loadtests.chaos.faults import BACKEND_FAULTS, inject, undo
from loadtests.chaos.load import LoadGenerator, RequestOutcome
from loadtests.chaos.matrix import PACE, attempts_per_item
from loadtests.chaos.system import BackendSpec, chaos_system
from loadtests.faults.model import ModelOracle

_SPECS = [BackendSpec(name=f"{r}-{n}", region=r, pace=PACE) for r in ("eu", "us") for n in range(2)]
_HASTE = 0.3


class ShortMatrixResult(msgspec.Struct, frozen=True, kw_only=True):
    """Requests with ample deadlines, requests with 300 ms, and attempts per item."""

    sent: list[RequestOutcome]
    hasty: list[RequestOutcome]
    attempts: float


async def run_short_matrix(folder: Path, *, rate: float, struck: float) -> ShortMatrixResult:
    """Inject each fault for `struck` seconds, every second one into the whole region."""
    async with chaos_system(folder, _SPECS) as system:
        judge = ModelOracle([system.backends["eu-0"].models])
        load = LoadGenerator(system.port, judge, rate=rate, seed=1)
        hasty = LoadGenerator(system.port, judge, rate=rate / 10, seed=2, timeout=_HASTE)
        async with load, hasty:
            for number, fault in enumerate(BACKEND_FAULTS):
                victims = system.of_region("eu")[: 1 + number % 2]
                await inject(fault, victims)
                await asyncio.sleep(struck)
                await undo(fault, victims)
            judge.learn()
        return ShortMatrixResult(
            sent=load.sent, hasty=hasty.sent, attempts=await attempts_per_item(system)
        )
