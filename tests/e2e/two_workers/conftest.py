"""Provides the running system, parts of which the tests of this folder end and change."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.system import TWO_REGIONS, System
from tests.support.opposite_head import turn_head

_CONFIG = Path(__file__).parents[3] / "config"


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the system: `config`, `models` and `data`."""
    return tmp_path_factory.mktemp("two-workers")


@pytest.fixture(scope="package")
def models(light_models: Path, folder: Path) -> Path:
    """The light models, and two copies of `sentiment`: `swapped`, and `weighted` with revisions.

    Revision 2 of `weighted` says the opposite. Revisions 3 and 4 cannot be served beside 1.
    """
    root = Path(shutil.copytree(light_models, folder / "models"))
    for name in ("swapped", "weighted"):
        shutil.copytree(root / "sentiment", root / name)
    weighted = root / "weighted"
    for number in ("2", "3", "4"):
        shutil.copytree(weighted / "1", weighted / number)
    turn_head(weighted / "2")
    manifest = weighted / "3" / "model.yaml"
    manifest.write_text(manifest.read_text().replace("negative", "bad").replace("positive", "good"))
    (weighted / "4" / "head.npz").write_bytes(b"PK\x03\x04 and no more")
    (weighted / "serving.yaml").write_text("revisions: {1: 1}\n")
    return root


@pytest.fixture(scope="package")
def system(models: Path, folder: Path) -> Iterator[System]:
    """Two workers, neither of which is replaced because it hangs."""
    config = Path(shutil.copytree(_CONFIG, folder / "config"))
    environment = {
        "SLUICEGATE_HEARTBEAT_TIMEOUT": "0",
        "SLUICEGATE_SHUTDOWN_DELAY": "2",
    }
    with System(
        folder / "data",
        models=models,
        workers=2,
        config=config,
        arguments=TWO_REGIONS,
        environment=environment,
    ) as running:
        yield running
