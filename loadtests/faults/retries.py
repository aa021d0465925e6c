"""Kills workers and Redis at random while callers repeat requests with idempotency keys."""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from loadtests.faults.catalogue import Case, Fault, LoadSpec
from loadtests.faults.judge import Window
from loadtests.faults.processes import Processes, Setup
from loadtests.faults.topology import repeating

_EXPLAINED = {0, 200, 409, 429, 500, 502, 503, 504}
"""Statuses that a kill may cause."""
_VICTIMS = ("worker", "worker", "state", "cache")


@contextmanager
def _kill_at_random(topology: Processes, _: str) -> Iterator[None]:
    killed = topology.notes["killed"] = Counter[str]()

    def kill() -> float:
        victim = random.choice(_VICTIMS)
        killed[victim] += 1
        if victim == "worker":
            workers = [pid for name, pid in topology.pids().items() if name.startswith("gateway")]
            with suppress(ProcessLookupError, IndexError):
                os.kill(random.choice(workers), signal.SIGKILL)
        else:
            topology.server(victim).kill()
            time.sleep(random.uniform(0.0, 0.5))
            topology.server(victim).start()
        return random.uniform(0.4, 1.6)

    with repeating(kill):
        yield


def explained(case: Case) -> Iterator[str]:
    """Record what was killed, and find wrong or missing answers that no kill explains."""
    answered = [each for each in case.sent if each.status == 200]
    keys = {each.retry_key for each in answered}
    case.figures.update(
        killed=dict(case.topology.notes["killed"]),
        keys=len(keys),
        answers=len(answered),
        statuses=dict(Counter(each.status for each in case.sent)),
    )
    other = {each.status for each in case.sent} - _EXPLAINED
    if other:
        yield f"requests were answered {sorted(other)}"


FAULTS = (
    Fault(
        name="retries",
        what="kills a worker or a Redis every second, while requests with idempotency keys repeat",
        undo="supervisor and runner start each again at once",
        act=_kill_at_random,
        parts=("workers and Redis",),
        hold=60.0,
        windows={"workers": Window(is_open=True, after_end=10.0)},
        load=LoadSpec(rate=10.0, repeated=0.0, keyed=True),
        setup=Setup(document={"idempotency": {"lease": 1.0}}),
        checks=(explained,),
    ),
)
