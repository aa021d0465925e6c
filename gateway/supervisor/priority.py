"""Gives processes that handle usage events a lower priority than processes that serve requests.

If Linux groups processes by session (autogroup), it divides CPU time first among the groups, and
then among the processes of each group. `nice` then has no effect between processes of different
sessions, so this module also sets the niceness of the autogroup.

The niceness is 10. The scheduler then gives a process a tenth of the weight of a process with
niceness 0. Niceness 19 would give the process a seventieth of that weight. Beside eight busy
processes on two cores, billing with niceness 19 took 102 s to start and store 200 events. With
niceness 10, it took 0.2 s.
"""

import asyncio
import contextlib
import os
import time
from pathlib import Path

_LOW = 10
_NORMAL = 0
# The kernel limits changes of autogroups by users other than root: one change in 0.1 s on the whole
# machine.
_ATTEMPTS = 10
_BETWEEN = 0.11


def give_way(group: Path = Path("/proc/self/autogroup")) -> None:
    """Lower the priority of this process, and of its autogroup if it has one."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _LOW)
    if os.getsid(0) != os.getpid():
        return
    for _ in range(_ATTEMPTS):
        if _weigh(group, _LOW):
            return
        time.sleep(_BETWEEN)


async def end_giving_way(process: int) -> None:
    """Restore the priority of a process that the supervisor has told to end: it then ends sooner.

    Without privileges, the supervisor can raise the priority of an autogroup, but not of a process.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, process, os.getpriority(os.PRIO_PROCESS, 0))
    for _ in range(_ATTEMPTS):
        if _weigh(Path(f"/proc/{process}/autogroup"), _NORMAL):
            return
        await asyncio.sleep(_BETWEEN)


def _weigh(group: Path, niceness: int) -> bool:
    """Set the niceness of an autogroup. Return `False` if the caller should try again."""
    try:
        if group.exists():
            group.write_text(str(niceness))
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
