"""An import that is killed leaves nothing in the repository."""

import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sluicegate.backends.model_tools.importing.convert import convert
from sluicegate.backends.repository.staging import MARK
from tests.parity.checkpoints import Checkpoint, write_checkpoint
from tests.support.backend_calls import running_backend
from tests.support.imports import import_arguments

INTERVAL = 0.01


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to import, with its graph hidden in it."""
    folder = tmp_path_factory.mktemp("killed") / "good"
    write_checkpoint(Checkpoint(family="bert", purpose="text"), folder)
    convert(folder, folder / ".converted")
    return folder


def wait_until(reached: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not reached():
        assert time.monotonic() < end
        threading.Event().wait(INTERVAL)


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_a_killed_import_leaves_nothing(
    checkpoint: Path, tmp_path: Path, by: signal.Signals
) -> None:
    models = tmp_path / "m"
    given = import_arguments(checkpoint, models, "--name", "odd")
    with subprocess.Popen(
        [sys.executable, "-m", "sluicegate.backends", *given], stdout=subprocess.PIPE
    ) as child:
        wait_until(lambda: any(models.glob(".importing-*/odd/1/*")))

        child.send_signal(by)

    wait_until(lambda: not any(models.iterdir()))


@pytest.mark.anyio
async def test_what_a_killed_import_left_goes_when_a_backend_starts(
    checkpoint: Path, tmp_path: Path
) -> None:
    models = tmp_path / "m"
    shutil.copytree(checkpoint / ".converted", models / "good" / "1")
    (models / ".importing-killed").mkdir()
    (models / ".importing-killed" / MARK).touch()

    async with running_backend(models, threads=1):
        left = [path.name for path in models.iterdir()]

    assert left == ["good"]
