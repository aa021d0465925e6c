"""Provides the running system, which the tests of this folder leave unchanged."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.system import TWO_REGIONS, System

_CONFIG = Path(__file__).parents[3] / "config"


@pytest.fixture(scope="package")
def system(demo_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """`sluicegate up`, ready, with one worker; stopped with a check that nothing is left."""
    folder = tmp_path_factory.mktemp("up")
    config = Path(shutil.copytree(_CONFIG, folder / "config"))
    document = config / "gateway.yaml"
    # On a machine that is busy otherwise work would leave the region where its rows are known.
    document.write_text(
        document.read_text().replace("routing:\n", "routing:\n  spill_after: 30.0\n")
    )
    with System(
        folder / "data",
        models=demo_models,
        config=config,
        arguments=TWO_REGIONS,
    ) as running:
        yield running
