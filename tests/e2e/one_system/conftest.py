"""Provides the running system, which the tests of this folder leave unchanged."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.system import TWO_REGIONS, System
from tests.support.example_models import write_example_models

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
    models = Path(shutil.copytree(demo_models, folder / "models", copy_function=os.link))
    write_example_models(models, folder / "checkpoints")
    with System(
        folder / "data",
        models=models,
        config=config,
        arguments=TWO_REGIONS,
    ) as running:
        yield running
