"""Giving way lowers a process, and the group of a session that is its own."""

import subprocess
import sys
from pathlib import Path

import pytest

_CODE = """
import os, sys
from pathlib import Path
from sluicegate.gateway.supervisor.priority import give_way
give_way(Path(sys.argv[1]))
print(os.getpriority(os.PRIO_PROCESS, 0))
"""
# As somebody without rights, whom the kernel lets change one group in a tenth of a second.
_TOGETHER = """
import ctypes, os, sys
from pathlib import Path
from sluicegate.gateway.supervisor.priority import give_way
if os.geteuid() == 0:
    os.setuid(65534)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # its files in /proc are its own
print("ready", flush=True)
sys.stdin.readline()
give_way()
print(Path("/proc/self/autogroup").read_text().split()[-1])
"""
_SESSIONS_ARE_GROUPS = Path("/proc/self/autogroup").exists()


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

    assert said == [b"10\n"] * 3
    assert group.read_text() == "10"


@pytest.mark.skipif(
    not _SESSIONS_ARE_GROUPS, reason="needs scheduling by session, /proc/self/autogroup"
)
def test_several_that_start_at_once_all_lower_their_groups() -> None:
    children = [
        subprocess.Popen(
            [sys.executable, "-c", _TOGETHER],
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for _ in range(3)
    ]

    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write(b"\n")
        child.stdin.flush()
    said = [child.communicate()[0] for child in children]

    assert said == [b"10\n"] * 3


def test_the_group_of_somebody_elses_session_stays(tmp_path: Path) -> None:
    group = tmp_path / "autogroup"
    group.write_text("0")

    command = [sys.executable, "-c", _CODE, str(group)]
    subprocess.run(command, capture_output=True, check=True)

    assert group.read_text() == "0"
