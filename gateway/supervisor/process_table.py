"""Reads and writes `processes.json`, which lists running processes.

The file is for operators, and for the next supervisor. If a supervisor was killed, the next
supervisor finds the remaining child processes in the file, and ends them.
"""

import contextlib
import os
import signal
import time
from pathlib import Path

import msgspec

from sluicegate.gateway.supervisor.liveness import activity_of
from sluicegate.gateway.supervisor.spec import ProcessRole

FILE = "processes.json"
_WITHIN = 5.0
"""The most seconds to wait for the end of killed processes."""


class ProcessEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a process.

    `started` is the start time of the process on the kernel's clock. A process with the same pid
    but another start time is a different process.
    """

    role: ProcessRole
    region: str
    index: int
    pid: int
    address: str
    started: int = 0


def write_table(folder: Path, entries: list[ProcessEntry]) -> str:
    """Replace the table atomically. Return "", or the reason for a failure.

    No error is raised, because a full disk must not end the supervisor.
    """
    text = msgspec.json.format(msgspec.json.encode(entries), indent=1)
    temporary = folder / f".{FILE}"
    try:
        temporary.write_bytes(text + b"\n")
        temporary.replace(folder / FILE)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        return error.strerror or type(error).__name__
    return ""


def read_table(folder: Path) -> list[ProcessEntry]:
    """Return the table, or an empty list if there is no readable table."""
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=list[ProcessEntry])
    except (OSError, msgspec.DecodeError):
        return []


def start_of(pid: int) -> int:
    """Return when a process started, in ticks of the kernel's clock, or 0 if that is unknown."""
    activity = activity_of(pid)
    # A process in the state Z or X has ended, but its parent has not read its exit status yet.
    return 0 if activity is None or activity.state in "ZX" else activity.started


def end_leftovers(folder: Path) -> int:
    """Kill the children that a killed supervisor left running, and return their number.

    A process is killed only if both its pid and its start time are in the table. The pid alone is
    not enough, because another process can have this pid by now.
    """
    leftovers = [e for e in read_table(folder) if e.started and start_of(e.pid) == e.started]
    for entry in leftovers:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(entry.pid, signal.SIGKILL)
    waited = 0.0
    while waited < _WITHIN and any(start_of(e.pid) == e.started for e in leftovers):
        time.sleep(0.02)
        waited += 0.02
    (folder / FILE).unlink(missing_ok=True)
    return len(leftovers)
