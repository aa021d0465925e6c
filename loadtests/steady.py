"""Runs an open loop at a steady rate in a process that other work disturbs little.

`python -m loadtests.steady < LOAD` prints the outcome as JSON. Timers of the event loop are exact
to tens of microseconds. As root, the process gets a real-time priority on its core. Otherwise,
other work may delay the sending of a request, and the delay would be measured as latency.
"""

import asyncio
import contextlib
import gc
import os
import selectors
import subprocess
import sys
from pathlib import Path

import msgspec

from loadtests.generator import Outcome, Target
from loadtests.open_loop import open_loop, outcome
from loadtests.workload import cycle

_ROOT = Path(__file__).parents[1]
_WARM = 0.2
"""Seconds of requests that are not measured, because a connection's first request is slow."""


class SteadyLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The load: `bodies` in turns, `rate` a second, for `duration` seconds, sent from `core`."""

    target: Target
    bodies: list[bytes]
    rate: float
    duration: float
    core: int
    connections: int = 64

    def run(self) -> Outcome:
        """Run the load in a separate process.

        The latency of a request is measured from the time at which it was due.
        """
        done = subprocess.run(
            [sys.executable, "-m", "loadtests.steady"],
            input=msgspec.json.encode(self),
            stdout=subprocess.PIPE,
            check=True,
            cwd=_ROOT,
        )
        return msgspec.json.decode(done.stdout, type=Outcome)


def _run(load: SteadyLoad) -> Outcome:
    os.sched_setaffinity(0, {load.core % (os.cpu_count() or 1)})
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    gc.disable()
    # `epoll` rounds timeouts to milliseconds, but `select` does not.
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        answers = runner.run(
            open_loop(
                load.target,
                cycle(load.bodies),
                rate=load.rate,
                duration=_WARM + load.duration,
                seed=None,
                connections=load.connections,
                patience=2.0,
            )
        )
    return outcome([answer for answer in answers if answer.due > _WARM], load.duration)


if __name__ == "__main__":
    found = _run(msgspec.json.decode(sys.stdin.buffer.read(), type=SteadyLoad))
    sys.stdout.buffer.write(msgspec.json.encode(found))
