"""Tests that threads and workers are as many as quotas of cgroups let run."""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluicegate.backends.settings import read_settings
from sluicegate.wire.cores import usable_cores

CPU = "/sys/fs/cgroup/cpu,cpuacct"
VERSION_1 = f"30 25 0:26 {{}} {CPU} rw,nosuid - cgroup cgroup rw,cpu,cpuacct\n"
VERSION_2 = "30 25 0:26 {} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
OTHERS = "31 25 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"


class Machine:
    """The files by which the kernel tells a process about its cgroups."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def tell(self, own: str, mounts: str) -> None:
        (self.root / "proc/self").mkdir(parents=True)
        (self.root / "proc/self/cgroup").write_text(own)
        (self.root / "proc/self/mountinfo").write_text(mounts)

    def limit(self, folder: str, quota: str) -> None:
        """Write a quota as both versions do."""
        place = self.root / folder.lstrip("/")
        place.mkdir(parents=True, exist_ok=True)
        first, period = quota.split()
        (place / "cpu.max").write_text(f"{quota}\n")
        (place / "cpu.cfs_quota_us").write_text("-1\n" if first == "max" else f"{first}\n")
        (place / "cpu.cfs_period_us").write_text(f"{period}\n")

    def cores(self) -> int:
        return usable_cores(self.root)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that may run on 64 cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))


@pytest.mark.usefixtures("many_cores")
@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        ("max 100000", 64),
        ("6400001 100000", 64),
        ("200000 100000", 2),
        ("150000 100000", 2),
        ("100000 50000", 2),
        ("1000 100000", 1),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_a_quota_bounds_the_cores(machine: Machine, version: int, quota: str, cores: int) -> None:
    own = "0::/pod/one\n" if version == 2 else "5:memory:/else\n4:cpu,cpuacct:/pod/one\n0::/\n"
    mounts = OTHERS + (VERSION_2 if version == 2 else VERSION_1).format("/")
    machine.tell(own, mounts)
    machine.limit(("/sys/fs/cgroup" if version == 2 else CPU) + "/pod/one", quota)

    assert machine.cores() == cores


@pytest.mark.usefixtures("many_cores")
@pytest.mark.parametrize("around", ["", "/pod", "/pod/one"])
def test_the_least_quota_around_a_process_counts(machine: Machine, around: str) -> None:
    machine.tell("0::/pod/one\n", VERSION_2.format("/"))
    for each in ("", "/pod", "/pod/one"):
        machine.limit(f"/sys/fs/cgroup{each}", "300000 100000" if each == around else "max 100000")
    machine.limit("/sys/fs/cgroup/other", "100000 100000")

    assert machine.cores() == 3


@pytest.mark.usefixtures("many_cores")
@pytest.mark.parametrize(
    ("own", "mounted"),
    [
        ("/", "/"),  # a namespace of its own
        ("/docker/one", "/docker/one"),  # the path on the host, its own cgroup mounted
        ("/docker/one/inner", "/docker/one"),
        ("/", "/docker/one"),  # the mount of the host, the path of the namespace
        ("/../two", "/"),
    ],
)
def test_a_container_finds_its_quota_at_its_root(machine: Machine, own: str, mounted: str) -> None:
    machine.tell(f"4:cpu,cpuacct:{own}\n", VERSION_1.format(mounted))
    machine.limit(CPU, "200000 100000")

    assert machine.cores() == 2


@pytest.mark.usefixtures("many_cores")
def test_a_process_without_quotas_has_the_cores_it_may_run_on(machine: Machine) -> None:
    without_files = machine.cores()
    machine.tell("0::/\n", VERSION_2.format("/"))

    assert (without_files, machine.cores()) == (64, 64)


@pytest.mark.usefixtures("many_cores")
def test_names_of_mounts_and_cgroups_are_any_bytes(machine: Machine) -> None:
    machine.tell("", "")
    (machine.root / "proc/self/cgroup").write_bytes(b"0::/pod\xff\n")
    mounts = b"31 25 0:27 / /mnt/\xe9 rw - ext4 /dev/sda rw\n" + VERSION_2.format("/").encode()
    (machine.root / "proc/self/mountinfo").write_bytes(mounts)
    machine.limit("/sys/fs/cgroup/pod\udcff", "200000 100000")

    assert machine.cores() == 2


@pytest.mark.usefixtures("many_cores")
@pytest.mark.parametrize("end", ["\r", "\v", "\f", "\x1c", "\x85", "\u2028"])
def test_a_name_may_have_what_ends_a_line_elsewhere(machine: Machine, end: str) -> None:
    mounts = f"31 25 0:27 / /mnt/a{end}b rw - ext4 /dev/sda rw\n" + VERSION_2.format("/")
    machine.tell("", "")
    (machine.root / "proc/self/cgroup").write_bytes(f"0::/pod{end}\n".encode())
    (machine.root / "proc/self/mountinfo").write_bytes(mounts.encode())
    machine.limit(f"/sys/fs/cgroup/pod{end}", "200000 100000")

    assert machine.cores() == 2


@pytest.mark.usefixtures("many_cores")
def test_a_kernel_without_cgroups_has_no_quotas(machine: Machine) -> None:
    machine.tell("", VERSION_2.format("/"))

    assert machine.cores() == 64


@pytest.fixture
def half_a_core() -> Iterator[Path]:
    """A cgroup of the kernel that gives half a core, of whichever version is here."""
    own = next(
        (
            each
            for each in (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup"))
            if (each / "cgroup.procs").exists()
        ),
        Path("/none"),
    )
    folder = own / f"sluicegate-{uuid.uuid4().hex}"
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("cgroups cannot be made here")
    try:
        if (folder / "cpu.cfs_quota_us").exists():
            (folder / "cpu.cfs_quota_us").write_text("50000")
        elif (folder / "cpu.max").exists():
            (folder / "cpu.max").write_text("50000 100000")
        else:
            pytest.skip("cgroups have no quotas here")
        yield folder
    finally:
        folder.rmdir()


def test_a_process_in_a_cgroup_of_the_kernel_counts_its_quota(half_a_core: Path) -> None:
    program = (
        f"open({str(half_a_core / 'cgroup.procs')!r}, 'w').write('0');"
        "from sluicegate.backends.settings import read_settings;"
        "print(read_settings({}).worker_threads)"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )

    assert (done.stdout, done.stderr) == ("1\n", "")


def test_a_number_of_threads_that_is_set_is_not_bounded() -> None:
    assert read_settings({"SLUICEGATE_BACKEND_THREADS": "96"}).worker_threads == 96
