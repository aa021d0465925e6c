"""Requests that are right, odd and wrong, for some seconds; `make fuzz-http` is longer."""

from pathlib import Path

import pytest

from loadtests.fuzz_http.command import describe_finding
from loadtests.fuzz_http.run import fuzz

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def test_no_request_crosses_answers_or_hangs_or_brings_a_worker_down(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    seed = pytestconfig.getoption("--fuzz-seed")

    done = fuzz(tmp_path, seed=seed, requests=4_000)

    assert [describe_finding(done, finding) for finding in done.findings] == []
    assert done.trouble == []
    assert done.requests >= 4_000
    kinds = {kind for kind, _ in done.answers}
    assert {"plain", "chunked", "upgrade", "half-closed", "long head", "framing"} <= kinds
