"""Hidden folders of killed processes go; those of live ones and of others stay."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from sluicegate.backends.repository.publishing import publish_revision
from sluicegate.backends.repository.staging import open_staging, remove_abandoned

_HOLD = (
    "import sys; from pathlib import Path;"
    " from sluicegate.backends.repository.staging import open_staging\n"
    "with open_staging(Path(sys.argv[1]), '.importing-') as folder:\n"
    "    (folder / 'graph').write_bytes(b'0' * 1000); print(folder, flush=True); sys.stdin.read()\n"
)


def test_the_folder_of_a_killed_process_is_removed_by_the_next(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        held = Path(holder.stdout.readline().decode().strip())

        remove_abandoned(tmp_path)
        while_it_lives = held.exists()
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        with open_staging(tmp_path, ".importing-") as own:
            left = list(tmp_path.iterdir())

    assert while_it_lives
    assert left == [own]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_the_same_name_that_somebody_made_stays(tmp_path: Path) -> None:
    (tmp_path / ".importing-mine").mkdir()

    remove_abandoned(tmp_path)

    assert (tmp_path / ".importing-mine").is_dir()


def test_a_revision_takes_the_number_after_the_newest(tmp_path: Path) -> None:
    (tmp_path / "mood" / "7").mkdir(parents=True)
    (tmp_path / "mood" / "7" / "model.yaml").touch()
    (tmp_path / "entry").mkdir()

    assert publish_revision(tmp_path / "entry", tmp_path / "mood") == tmp_path / "mood" / "8"
