"""Tests the topology of a GPU: several backends of one region, one device."""

from itertools import islice
from pathlib import Path
from shutil import copytree

from loadtests.pipeline import PacedDevice, Pipeline, sharing_backends
from loadtests.workload import sentences
from testing.system import System
from testing.waiting import wait_until

CONFIG = Path(__file__).parents[2] / "config"


def test_all_backends_that_share_a_device_are_asked(light_models: Path, tmp_path: Path) -> None:
    """What is computed is the sum of both: the benchmark refuses any other number of rows."""
    device = PacedDevice()
    config = Path(copytree(CONFIG, tmp_path / "config"))
    texts = iter(sentences(8192, seed=8))
    with (
        System(
            tmp_path / "data", models=light_models, config=config, environment=device.environment()
        ) as system,
        sharing_backends(system, light_models, config, device.environment(), count=2) as backends,
    ):
        pipeline = Pipeline(system, backends)

        def are_all_asked() -> bool:
            pipeline.run(list(islice(texts, 64)), items=4, connections=4)
            return all(backend.counter("rows_total", "minilm") for backend in backends)

        wait_until(are_all_asked, within=90, what="both backends compute rows")

        assert len(backends) == 2
