"""Faults under load, each for a moment: no wrong answer, no lost bill, and no error beyond windows.

`make faults` does this for longer, with every fault of the catalogue.
"""

from functools import partial
from pathlib import Path

import msgspec
import pytest

from loadtests.faults.catalogue import Fault, LoadSpec
from loadtests.faults.changes import change_everything, changes_worked
from loadtests.faults.command import FAULTS
from loadtests.faults.processes import TWO_BY_TWO, Processes, Setup
from loadtests.faults.run import Job, Pace, run_case

pytestmark = pytest.mark.timeout(1800)

# A slow machine has time to be well again; how long that takes is measured by the long run alone.
PACE = Pace(quiet=0.2, hold=1.0, settled=240.0, after=0.2, again=0.1)
# One region has nothing to lose to.
SETUP = Setup(backends=TWO_BY_TWO[:3])
CASES = (
    *(("kill", part) for part in ("worker", "billing", "backend eu-0", "cache")),
    *(("stop", part) for part in ("region eu", "state")),
)


def fault(name: str, **changes: object) -> Fault:
    found = next(each for each in FAULTS if each.name == name)
    # What a fault costs, such as attempts per item, says nothing in so short a time.
    usual = {"load": LoadSpec(rate=20.0), "checks": ()}
    return msgspec.structs.replace(found, **(usual | changes))


def test_no_short_fault_is_noticed_beyond_its_window(tmp_path: Path) -> None:
    """All of them one after another, on one running system."""
    found = {}
    with Processes(tmp_path, SETUP) as topology:
        for name, part in CASES:
            job = Job(fault(name), part)
            _, findings = run_case(topology, job, PACE)
            if findings:
                found[job.name] = findings

    assert found == {}


def test_changes_under_mixed_load_cost_no_answer_and_no_bill(tmp_path: Path) -> None:
    act = partial(change_everything, every=0.5)
    soak = fault("soak", act=act, checks=(changes_worked,))
    pace = msgspec.structs.replace(PACE, hold=7.0)
    assert isinstance(soak.setup, Setup)
    setup = msgspec.structs.replace(soak.setup, backends=TWO_BY_TWO[::2])

    with Processes(tmp_path, setup) as topology:
        figures, findings = run_case(topology, Job(soak, "operator"), pace)

    assert findings == []
    assert figures["changes"] >= 4
