"""Both listeners answer as their OpenAPI documents say; `make fuzz-api` tries more."""

from pathlib import Path

import pytest

from loadtests.fuzz_api.run import DOCUMENTS, check

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_nothing_is_answered_that_is_not_documented(
    document: str, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    seed = pytestconfig.getoption("--fuzz-seed")

    done = check(tmp_path, document, examples=5, seed=seed, is_short=True)

    assert done.is_true, done.report
