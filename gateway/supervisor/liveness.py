"""Whether a child's event loop lives: silence is added up while the child could have spoken."""

from pathlib import Path

import msgspec

# What the kernel shows is in pages and ticks.
_PAGE_BYTES = 4096
_TICKS = 100.0
_STATE, _USER_TIME, _SYSTEM_TIME = 0, 11, 12
# No look adds more silence than this, however late it comes: then it was the supervisor that did
# not run, because the machine slept or had no time for it.
LONGEST_STEP = 2.0


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """What the kernel says of a process: `state` as in `ps`, processor time and resident memory."""

    state: str = "S"
    processor_time: float = 0.0
    resident_bytes: int = 0


def activity_of(pid: int) -> Activity | None:
    """Return what the kernel says of a process, `None` where there is none or nothing is said."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        pages = int(Path(f"/proc/{pid}/statm").read_bytes().split()[1])
    except (OSError, IndexError):
        return None
    fields = stat.rpartition(b")")[2].split()
    return Activity(
        state=fields[_STATE].decode(),
        processor_time=(int(fields[_USER_TIME]) + int(fields[_SYSTEM_TIME])) / _TICKS,
        resident_bytes=pages * _PAGE_BYTES,
    )


class Silence:
    """Adds up for how long a process has given no sign of life though it could have.

    A process that is runnable is judged by the processor time it was given, so that none is taken
    for dead on a machine that has no time for it; one that waits for a disk is not judged.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._heard = True
        self._processor_time = 0.0

    def heard(self) -> None:
        """Note a sign of life."""
        self._heard = True

    def look(self, passed: float, activity: Activity | None) -> float:
        """Return the seconds of silence, `passed` after the last look."""
        step = min(passed, LONGEST_STEP)
        if activity is not None:
            used = activity.processor_time - self._processor_time
            self._processor_time = activity.processor_time
            if activity.state == "R":
                step = min(step, max(0.0, used))
            elif activity.state in "DZX":
                step = 0.0
        self.seconds = 0.0 if self._heard else self.seconds + step
        self._heard = False
        return self.seconds
