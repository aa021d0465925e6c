"""Both listeners answer as their OpenAPI documents say; `make fuzz NAME=api` tries more."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtests.fuzz_api import DOCUMENTS, differences, documented_gateway
from loadtests.gateway import Gateway

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with documented_gateway(tmp_path_factory.mktemp("gateway")) as running:
        yield running


@pytest.mark.parametrize("document", DOCUMENTS)
def test_nothing_is_answered_that_is_not_documented(
    gateway: Gateway, document: str, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    seed = pytestconfig.getoption("--fuzz-seed")

    found = list(differences(gateway, tmp_path, document, examples=2, seed=seed, is_short=True))

    assert found == []
