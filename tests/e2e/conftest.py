"""A running system, shared by the tests of a module that leave it as they found it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.system import System


@pytest.fixture(scope="module")
def system(demo_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """`sluicegate up`, ready, with one worker; stopped with a check that nothing is left."""
    data_dir = tmp_path_factory.mktemp("up") / "data"
    with System(data_dir, models=demo_models) as running:
        yield running
