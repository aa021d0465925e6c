"""Gives way to whoever answers requests: what carries events can wait, on the disk.

A Linux desktop or server groups processes by session, and weighs groups before it weighs processes:
there `nice` alone changes nothing between a worker and a gateway, each of a session of its own.
"""

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

_LOWEST = 19
_NORMAL = 0
# The kernel lets one group of the whole machine be changed in a tenth of a second, but for root.
_ATTEMPTS = 10
_BETWEEN = 0.11


def give_way(
    group: Path = Path("/proc/self/autogroup"), *, pause: Callable[[float], None] = time.sleep
) -> None:
    """Run this process, and its session's group where there is one, after everybody else."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _LOWEST)
    if os.getsid(0) != os.getpid():
        return
    for _ in range(_ATTEMPTS):
        if _weigh(group, _LOWEST):
            return
        pause(_BETWEEN)


def end_giving_way(process: int) -> bool:
    """Have a process that gives way run beside all others: somebody waits for its end.

    A process without rights may not do so for itself, but for its session's group.

    Returns:
        Whether that is done, or cannot be; else it may be tried again in a tenth of a second.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, process, os.getpriority(os.PRIO_PROCESS, 0))
    return _weigh(Path(f"/proc/{process}/autogroup"), _NORMAL)


def _weigh(group: Path, niceness: int) -> bool:
    """Set a group's niceness; return false where that may be tried again."""
    try:
        if group.exists():
            group.write_text(str(niceness))
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
