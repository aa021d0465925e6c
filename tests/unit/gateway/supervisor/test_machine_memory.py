"""The smallest of the machine's memory and the limits of control groups counts."""

from pathlib import Path

import pytest

from gateway.supervisor.machine_memory import available_memory

_MACHINE = {"proc/meminfo": "MemTotal:  1000 kB\nMemFree:  10 kB\n"}
_V2 = {
    "proc/self/cgroup": "0::/pods/one\n",
    "proc/self/mountinfo": "30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
}
_V1 = {
    "proc/self/cgroup": "3:cpu,cpuacct:/a\n2:memory:/pods/one\n",
    "proc/self/mountinfo": "31 25 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
}


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, 0),
        (_MACHINE, 1_024_000),
        (_MACHINE | _V2 | {"sys/fs/cgroup/pods/one/memory.max": "max\n"}, 1_024_000),
        (_MACHINE | _V2 | {"sys/fs/cgroup/pods/one/memory.max": "5000\n"}, 5000),
        (_MACHINE | _V2 | {"sys/fs/cgroup/pods/memory.max": "6000\n"}, 6000),
        (_MACHINE | _V2 | {"sys/fs/cgroup/memory.max": "7000\n"}, 7000),
        (_MACHINE | _V1 | {"sys/fs/cgroup/memory/pods/memory.limit_in_bytes": "8000\n"}, 8000),
        (_MACHINE | _V1 | {"sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2**63}\n"}, 1_024_000),
    ],
    ids=["unknown", "machine", "no limit", "own", "parent", "container", "version 1", "none in 1"],
)
def test_the_smallest_limit_counts(tmp_path: Path, files: dict[str, str], found: int) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)

    assert available_memory(tmp_path) == found
