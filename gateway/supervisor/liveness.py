"""Measures for how long a child has sent no heartbeat although it could have sent one."""

import os
import re
from pathlib import Path

import msgspec

_TICKS = os.sysconf("SC_CLK_TCK")
# The positions of fields of /proc/PID/stat after the name.
_STATE, _USER_TIME, _SYSTEM_TIME, _STARTED = 0, 11, 12, 19
# Lines of /proc/PID/status, in KiB. A process that has ended has no such lines.
_MEMORY = re.compile(rb"^(VmRSS|RssFile):\s+(\d+) kB$", re.MULTILINE)
# One check adds at most this many seconds of silence. If more time has passed since the last check,
# the supervisor itself was suspended.
LONGEST_STEP = 2.0


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a process: its state (a letter as in `ps`), CPU time and private memory.

    `private_bytes` is the resident memory without mapped files, such as packed weights: each
    mapping counts their pages again, and the kernel can drop them. Memory that processes share
    without a file counts. `started` is the start time of the process in ticks of the kernel's
    clock.
    """

    state: str = "S"
    processor_time: float = 0.0
    private_bytes: int = 0
    started: int = 0


def activity_of(pid: int) -> Activity | None:
    """Read the activity of a process from /proc. Return `None` if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        memory = dict(_MEMORY.findall(Path(f"/proc/{pid}/status").read_bytes()))
    except OSError:
        return None
    fields = stat.rpartition(b")")[2].split()  # the name before `)` may contain spaces
    return Activity(
        state=fields[_STATE].decode(),
        processor_time=(int(fields[_USER_TIME]) + int(fields[_SYSTEM_TIME])) / _TICKS,
        private_bytes=(int(memory.get(b"VmRSS", 0)) - int(memory.get(b"RssFile", 0))) * 1024,
        started=int(fields[_STARTED]),
    )


class Silence:
    """Measures for how long a process has sent no heartbeat although it could have sent one.

    This time is called silence. While a process is ready to run, only the CPU time that it gets
    counts as silence. A process on an overloaded machine therefore does not look dead. The time for
    which a process waits for a disk does not count.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._has_responded = True
        self._processor_time = 0.0

    def record_response(self) -> None:
        """Record a heartbeat or a response."""
        self._has_responded = True

    def look(self, passed: float, activity: Activity | None) -> float:
        """Return the seconds of silence so far. The last call was `passed` seconds ago."""
        step = min(passed, LONGEST_STEP)
        if activity is not None:
            used = activity.processor_time - self._processor_time
            self._processor_time = activity.processor_time
            if activity.state == "R":
                step = min(step, max(0.0, used))
            elif activity.state in "DZX":
                step = 0.0
        self.seconds = 0.0 if self._has_responded else self.seconds + step
        self._has_responded = False
        return self.seconds
