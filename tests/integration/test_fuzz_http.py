"""Requests that are right, odd and wrong, of all dialects, for some seconds.

`make fuzz NAME=http` and `make fuzz NAME=dialects` are longer.
"""

from pathlib import Path

import pytest

from loadtests.fuzz_dialects.command import DialectTraffic
from loadtests.fuzz_dialects.routes import ROUTES
from loadtests.fuzz_http.command import fuzz

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def test_no_request_crosses_answers_or_hangs_or_brings_a_worker_down(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    seed = pytestconfig.getoption("--fuzz-seed")
    dialects = DialectTraffic(alternates=True)

    done = fuzz(tmp_path, dialects, seed=seed, requests=2_000, workers=1)

    assert done.findings == []
    assert done.requests >= 2_000
    assert min(dialects.hits, dialects.calls) > 100
    kinds = {kind for kind, _ in done.answers}
    assert {route.name for route in ROUTES} <= kinds
    assert {"plain", "chunked", "upgrade", "half-closed", "long head", "framing"} <= kinds
