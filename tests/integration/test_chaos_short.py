"""Faults of backends and regions under load, for a moment each: no wrong answer and no error.

`make chaos` does this for longer, and measures how long answers take.
"""

from pathlib import Path

import httpx
import pytest

from loadtests.chaos.short_matrix import run_short_matrix

pytestmark = pytest.mark.anyio

RATE, STRUCK = 50.0, 1.0


async def test_no_fault_of_one_backend_or_a_region_reaches_a_caller(tmp_path: Path) -> None:
    """All faults of the matrix one after another; callers in a hurry may be told of their time."""
    run = await run_short_matrix(tmp_path, rate=RATE, struck=STRUCK)

    answered = [sent for sent in [*run.sent, *run.hasty] if sent.status == httpx.codes.OK]
    assert {sent.status for sent in run.sent} == {httpx.codes.OK}
    assert len(run.sent) > 200
    assert all(sent.is_right for sent in answered)
    assert {sent.status for sent in run.hasty} <= {
        httpx.codes.OK,
        httpx.codes.GATEWAY_TIMEOUT,
        httpx.codes.SERVICE_UNAVAILABLE,
    }
    assert run.attempts <= 1.2
