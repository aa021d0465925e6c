"""Giving way lowers a process, and the group of a session that is its own."""

import subprocess
import sys
from pathlib import Path

_CODE = """
import os, sys
from pathlib import Path
from gateway.priority import give_way
give_way(Path(sys.argv[1]))
print(os.getpriority(os.PRIO_PROCESS, 0))
"""


def test_a_leader_of_a_session_lowers_itself_and_its_group(tmp_path: Path) -> None:
    group = tmp_path / "autogroup"
    group.write_text("0")

    said = [
        subprocess.run(
            [sys.executable, "-c", _CODE, str(path)],
            start_new_session=own,
            capture_output=True,
            check=True,
        ).stdout
        for path, own in [(group, True), (tmp_path / "missing", True), (group, False)]
    ]

    assert said == [b"19\n"] * 3
    assert group.read_text() == "19"


def test_the_group_of_somebody_elses_session_stays(tmp_path: Path) -> None:
    group = tmp_path / "autogroup"
    group.write_text("0")

    command = [sys.executable, "-c", _CODE, str(group)]
    subprocess.run(command, capture_output=True, check=True)

    assert group.read_text() == "0"
