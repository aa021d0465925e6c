"""Cuts the power of a gateway machine: all data that was not synced to its disk is lost."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.settings import Settings
from loadtests.faults.acts import kill
from loadtests.faults.catalogue import Case, Fault, LoadSpec
from loadtests.faults.judge import Window
from loadtests.faults.processes import Processes, Setup

_AWAY = 5.0
"""For this many seconds before the cut the state Redis is down, so that no event is shipped."""
_SYNC = 0.5
"""The most seconds that a sync takes. Events that arrive meanwhile wait for the next sync."""
_MAY_LOSE = Settings().events_sync_interval + _SYNC


@contextmanager
def _cut(topology: Processes, part: str) -> Iterator[None]:
    state = topology.server("state")
    topology.notes["gaps"] = _counted(topology)
    if part == "gateway-without-redis":
        state.kill()
        time.sleep(_AWAY)
    topology.notes["cut"] = time.monotonic()
    with kill(topology, "gateway"):
        topology.disk.cut_power()
        yield
        if not state.is_running:
            state.start()


def loss_is_bounded(case: Case) -> Iterator[str]:
    """Find lost events of old answers, and lost events that the ledger does not report as lost."""
    billed = {row.id for row in case.topology.billed(0.0)}
    lost = [each for each in case.sent if each.status == 200 and each.id not in billed]
    counted = _counted(case.topology) - case.topology.notes["gaps"]
    oldest = case.topology.notes["cut"] - min((each.came for each in lost), default=float("inf"))
    case.figures.update(lost=len(lost), counted_as_lost=counted)
    if lost:
        case.figures["oldest_lost"] = round(oldest, 2)
    if lost and not counted:
        yield f"{len(lost)} answers are lost, and none is counted"
    if oldest > _MAY_LOSE:
        yield f"an answer is lost that came {oldest:.2f} s before the cut"


def _counted(topology: Processes) -> int:
    """Return how many requests the ledger has counted as lost since its creation."""
    ((counted,),) = topology.ask_ledger("SELECT sum(last - first + 1) FROM gaps")
    return int(counted or 0)


FAULTS = (
    Fault(
        name="power-cut",
        what="kills the gateway, and takes from its disk what was not written",
        undo="the gateway starts on what is left",
        act=_cut,
        parts=("gateway", "gateway-without-redis"),
        hold=1.0,
        windows={"gateway": Window(is_open=True, after_end=3.0)},
        load=LoadSpec(rate=100.0, repeated=0.7, hasty=0.0),
        setup=Setup(workers=1, disk_bytes=192 << 20),
        may_lose=_MAY_LOSE,
        checks=(loss_is_bounded,),
    ),
)
