"""Cuts the power of a gateway machine: all data that is not on its disk is lost."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from loadtests.faults.catalogue import Case, Fault, LoadSpec
from loadtests.faults.judge import Window
from loadtests.faults.processes import Processes, Setup

_AWAY = 5.0
"""Seconds that the state Redis is away before the cut, so that nothing of them is shipped."""


@contextmanager
def _cut(topology: Processes, part: str) -> Iterator[None]:
    state = topology.server("state")
    topology.notes["gaps"] = _counted(topology)
    if part == "gateway-without-redis":
        state.kill()
        time.sleep(_AWAY)
    with topology.inject("kill", "gateway"):
        topology.disk.cut_power()
        yield
        if not state.is_running:
            state.start()


def loss_is_counted(case: Case) -> Sequence[str]:
    """Find answers that the ledger neither bills nor counts as lost."""
    billed = {row.id for row in case.topology.billed(0.0)}
    lost = sum(each.status == 200 and each.id not in billed for each in case.sent)
    counted = _counted(case.topology) - case.topology.notes["gaps"]
    case.figures.update(lost=lost, counted_as_lost=counted)
    return [f"{lost} answers are lost, and none is counted"] if lost and not counted else []


def _counted(topology: Processes) -> int:
    """Return how many requests the ledger counts as lost, since it is there."""
    ((counted,),) = topology.ask_ledger("SELECT sum(last - first + 1) FROM gaps")
    return int(counted or 0)


FAULTS = (
    Fault(
        name="power-cut",
        what="kills the gateway, and takes from its disk what was not written",
        undo="the gateway starts on what is left",
        hold=1.0,
        windows={"gateway": Window(is_open=True, after_end=3.0)},
        load=LoadSpec(rate=100.0, repeated=0.7, hasty=0.0),
        setup=Setup(workers=1, disk_bytes=192 << 20),
        act=_cut,
        parts=("gateway", "gateway-without-redis"),
        # Logs are synced twice a second.
        may_lose=2.0,
        checks=(loss_is_counted,),
    ),
)
