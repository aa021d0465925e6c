"""Gives processes that handle usage events a lower priority than processes that serve requests.

Linux may group processes by session (autogroup), and then schedules groups before processes. In
that case `nice` has no effect between processes of different sessions, so the niceness of the
autogroup is set as well.

The niceness is 10, a tenth of the weight of a process with niceness 0. With 19, a seventieth of the
weight, billing took 102 s to start and store 200 events beside eight busy processes on two cores.
With 10 it took 0.2 s.
"""

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

_LOW = 10
_NORMAL = 0
# Without root, the kernel allows one change of an autogroup every 0.1 s on the whole machine.
_ATTEMPTS = 10
_BETWEEN = 0.11


def give_way(
    group: Path = Path("/proc/self/autogroup"), *, pause: Callable[[float], None] = time.sleep
) -> None:
    """Lower the priority of this process, and of its autogroup if there is one."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _LOW)
    if os.getsid(0) != os.getpid():
        return
    for _ in range(_ATTEMPTS):
        if _weigh(group, _LOW):
            return
        pause(_BETWEEN)


def end_giving_way(process: int) -> bool:
    """Restore the priority of a process, because the supervisor waits for its end.

    An unprivileged process cannot raise the priority of a process, but of an autogroup.

    Returns:
        False if the caller may try again after 0.1 s; true if that would change nothing.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, process, os.getpriority(os.PRIO_PROCESS, 0))
    return _weigh(Path(f"/proc/{process}/autogroup"), _NORMAL)


def _weigh(group: Path, niceness: int) -> bool:
    """Set the niceness of an autogroup; return false if the caller may try again."""
    try:
        if group.exists():
            group.write_text(str(niceness))
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
