"""Lowers the priority of processes that carry events, below those that answer requests.

Linux may group processes by session (autogroup) and schedule groups before processes: there `nice`
alone changes nothing between two processes of different sessions.

The niceness is 10, about a tenth of the weight of a process at 0. At 19, a seventieth, billing took
102 s to start and to store 200 events beside eight busy processes on two cores; at 10, 0.2 s.
"""

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

_LOW = 10
_NORMAL = 0
# Without root, the kernel lets one autogroup of the machine be changed every 0.1 s.
_ATTEMPTS = 10
_BETWEEN = 0.11


def give_way(
    group: Path = Path("/proc/self/autogroup"), *, pause: Callable[[float], None] = time.sleep
) -> None:
    """Give this process, and its autogroup where there is one, a low priority."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _LOW)
    if os.getsid(0) != os.getpid():
        return
    for _ in range(_ATTEMPTS):
        if _weigh(group, _LOW):
            return
        pause(_BETWEEN)


def end_giving_way(process: int) -> bool:
    """Reset the priority of a process, because the supervisor waits for its end.

    An unprivileged process may not raise its own priority, but that of its autogroup.

    Returns:
        Whether it is done, or impossible; else it may be tried again after 0.1 s.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, process, os.getpriority(os.PRIO_PROCESS, 0))
    return _weigh(Path(f"/proc/{process}/autogroup"), _NORMAL)


def _weigh(group: Path, niceness: int) -> bool:
    """Set the niceness of an autogroup; return false where that may be tried again."""
    try:
        if group.exists():
            group.write_text(str(niceness))
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
