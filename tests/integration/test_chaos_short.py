"""Faults of backends and regions under load, for a moment each: no wrong answer and no error.

`make chaos` does this for longer, and measures how long answers take.
"""

import asyncio
from pathlib import Path

import httpx
import pytest

from loadtests.chaos.faults import DISASTERS, mend, strike
from loadtests.chaos.load import Load
from loadtests.chaos.matrix import PACE
from loadtests.chaos.models import Judge
from loadtests.chaos.system import Spec, chaos_system

pytestmark = pytest.mark.anyio

SPECS = [Spec(name=f"{r}-{n}", region=r, pace=PACE) for r in ("eu", "us") for n in range(2)]
RATE = 50.0
STRUCK = 1.0
HASTE = 0.3


async def test_no_fault_of_one_backend_or_a_region_reaches_a_caller(tmp_path: Path) -> None:
    """All faults of the matrix one after another, every second one of the whole region."""
    async with chaos_system(tmp_path, SPECS) as system:
        judge = Judge(system.backends["eu-0"].models)
        load = Load(system.port, judge, rate=RATE, seed=1)
        hasty = Load(system.port, judge, rate=RATE / 10, seed=2, timeout=HASTE)
        async with load, hasty:
            for number, disaster in enumerate(DISASTERS):
                victims = system.of_region("eu")[: 1 + number % 2]
                async with asyncio.timeout(60):
                    await strike(disaster, victims)
                    await asyncio.sleep(STRUCK)
                    await mend(disaster, victims)
            judge.learn()
        statuses = {sent.status for sent in load.sent}
        answered = [s for s in [*load.sent, *hasty.sent] if s.status == httpx.codes.OK]
        await asyncio.sleep(2.5)
        done = await system.dispatched()

    assert statuses == {httpx.codes.OK}
    assert all(sent.is_right for sent in answered)
    assert len(load.sent) > RATE * STRUCK * len(DISASTERS) / 2
    assert (done.retried + done.hedged) / (done.computed + done.failed) <= 0.2
