"""Processor time of a process and of those that it starts."""

import os
import subprocess
import sys

from testing.process_times import descendants

_BUSY = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"

# Less than that by a few ticks of the clock in which processes are accounted.
_SPENT = 0.25


def test_time_of_processes_that_were_started_is_counted() -> None:
    command = [sys.executable, "-c", _BUSY]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()

        found = descendants(os.getpid())

        child.communicate(b"\n")
    assert found[child.pid] >= _SPENT
