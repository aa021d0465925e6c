"""Gives way to whoever answers requests: what carries events can wait, on the disk.

A Linux desktop or server groups processes by session, and weighs groups before it weighs processes:
there `nice` alone changes nothing between a worker and a gateway, each of a session of its own.
"""

import contextlib
import os
from pathlib import Path

_NICENESS = 19


def give_way(group: Path = Path("/proc/self/autogroup")) -> None:
    """Run this process, and its session's group where there is one, after everybody else."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)
    with contextlib.suppress(OSError):
        if group.exists() and os.getsid(0) == os.getpid():
            group.write_text(str(_NICENESS))
