"""Packets dropped between two processes for a moment: nobody notices, and all is well afterwards.

`make faults TOPOLOGY=namespaces` does this with the settings that are shipped, for 5 and 120 s.
"""

import msgspec
import pytest

from loadtests.faults.judge import Window
from loadtests.faults.namespaces import FAULTS, PAIRS, Namespaces
from loadtests.faults.processes import lacks_programs
from loadtests.faults.run import Job, Pace, run_case

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]

# Long enough for keep-alive to give up while packets are dropped, as it does in a long partition.
KEEPALIVE = {
    "tcp_keepalive_idle": 1,
    "tcp_keepalive_interval": 1,
    "tcp_keepalive_count": 2,
    "tcp_user_timeout": 2.0,
}
GIVEN_UP, MOMENT = 5.0, 1.5
RECOVERY_TIME = 240.0
"""Seconds until all is well without a hand; on a machine that does other things as well, long."""
CASES = (
    ("drop-both", GIVEN_UP, "state from gateway; state from shipper; ledger from admin"),
    ("drop-forth", GIVEN_UP, "state from gateway; cache from gateway; ledger from billing"),
    ("drop-back", GIVEN_UP, "state from gateway; ledger from gateway; state from billing"),
    ("drop-both", MOMENT, "eu-0 from gateway; cache from admin; ledger from shipper"),
    # The last: backends that come back begin with few items, and the loss of one more is noticed.
    ("drop-both", MOMENT, "backends from gateway; state from admin; state from request-log"),
)
"""For how long, and pairs that are parted at once: one does not hide what another does. The
subscription of the first pair must be given up."""
WINDOWS = {"backends": Window(is_open=True, after_end=RECOVERY_TIME)}
_FAULTS = {fault.name: msgspec.structs.replace(fault, windows=WINDOWS) for fault in FAULTS}


def test_every_pair_is_parted() -> None:
    parted = {pair for _, _, part in CASES for pair in part.split("; ")}

    assert parted == set(PAIRS)


def test_no_partition_is_noticed_or_outlives_itself(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    if reason := lacks_programs():
        pytest.skip(f"partitions: {reason}")
    folder = tmp_path_factory.mktemp("partitions")
    found = {}
    with Namespaces(folder, **KEEPALIVE) as topology:
        for name, hold, part in CASES:
            job = Job(_FAULTS[name], part)
            pace = Pace(quiet=1.0, hold=hold, settled=RECOVERY_TIME, after=0.0)
            _, findings = run_case(topology, job, pace)
            if findings:
                found[job.name] = findings

    assert found == {}
