"""Describes the machine and its interpreter, pins processes, and reads their memory and time."""

import contextlib
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import msgspec


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine, interpreter and commit on which a figure depends.

    `python` is the interpreter's version and its installation, because a Python built without
    optimizations is slower.
    """

    cpu: str
    cores: int
    memory_gib: float
    python: str
    date: str
    commit: str

    @property
    def headline(self) -> str:
        """The line above each table of results."""
        return f"{self.cpu}, {self.cores} cores, Python {self.python}, {self.date}, {self.commit}"


def this_machine() -> Machine:
    """Return a description of this machine."""
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    command = ("git", "rev-parse", "--short", "HEAD")
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return Machine(
        cpu=cpu[1] if cpu else platform.processor(),
        cores=os.cpu_count() or 1,
        memory_gib=round(pages / 2**30, 1),
        python=f"{platform.python_version()} in {sys.base_prefix}",
        date=datetime.now(UTC).date().isoformat(),
        commit=commit or "none",
    )


def pin(pids: Iterable[int], core: int) -> None:
    """Keep all threads of these processes on core number `core`, modulo the number of cores."""
    cores = {core % (os.cpu_count() or 1)}
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(ProcessLookupError):  # the thread has ended meanwhile
                os.sched_setaffinity(int(thread.name), cores)


def busy_seconds(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def processor_seconds(*pids: int) -> float:
    """Return the processor time that processes have used together, to the nanosecond."""
    # The clock of a process, as `clock_getcpuclockid` names it.
    return sum(time.clock_gettime(~pid << 3 | 2) for pid in pids)


def resident_mib(pid: int) -> float:
    """Return a process's memory in MiB; a shared page counts in part (PSS)."""
    return _kib(pid, "smaps_rollup", "Pss:") / 1024


def resident_bytes(pid: int) -> int:
    """Return a process's memory in bytes; a shared page counts in full (RSS).

    Raises:
        OSError: the process has ended.
    """
    return _kib(pid, "status", "VmRSS:") * 1024


def _kib(pid: int, file: str, field: str) -> int:
    for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1])
    raise ProcessLookupError(pid)  # the process has ended, but its parent has not noticed yet
