"""Reads the processor time of a process and of all its descendants."""

import contextlib
import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def descendants(pid: int) -> dict[int, float]:
    """Return the processor seconds of a process and of each descendant, by process id."""
    found: dict[int, float] = {}
    with contextlib.suppress(OSError):  # the process has ended
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        found[pid] = (int(fields[11]) + int(fields[12])) / _TICKS
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in children.read_text().split():
                found |= descendants(int(child))
    return found
