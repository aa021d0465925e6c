"""Packets dropped between two processes for a moment: nobody notices, and all is well afterwards.

`make arena-partitions` does this with the settings that are shipped, for 5 and for 120 seconds.
"""

from pathlib import Path

import pytest

from gateway.sockets.tcp_keepalive import TcpKeepalive
from loadtests.partitions.cases import PAIRS, Direction
from loadtests.partitions.judging import problems
from loadtests.partitions.run import PartitionRun
from testing.namespaces import missing
from testing.postgresql import programs

pytestmark = [pytest.mark.anyio, pytest.mark.system, pytest.mark.timeout(1800)]

# Long enough for keep-alive to give up while packets are dropped, as it does in a long partition.
KEEPALIVE = TcpKeepalive(idle=1, interval=1, count=2, user_timeout=2.0)
GIVEN_UP, MOMENT = 5.0, 1.5
RECOVERY_TIME = 240.0
"""Seconds until all is well without a hand; on a machine that does other things as well, long."""


CASES = (
    ("gateway, state", Direction.BOTH, GIVEN_UP, ("shipper, state", "admin, ledger")),
    ("gateway, state", Direction.FORTH, GIVEN_UP, ("gateway, cache", "billing, ledger")),
    ("gateway, state", Direction.BACK, GIVEN_UP, ("gateway, ledger", "billing, state")),
    ("gateway, eu-0", Direction.BOTH, MOMENT, ("admin, cache", "shipper, ledger")),
    # The last: backends that come back begin with few items, and the loss of one more is noticed.
    ("gateway, every backend", Direction.BOTH, MOMENT, ("admin, state", "request-log, state")),
)
"""A pair, the directions of packets that are dropped, for how long, and pairs that are parted in
both directions meanwhile: one does not hide what another does. The subscription of the first pair
must be given up."""
_PAIRS = {pair.name: pair for pair in PAIRS}


def test_every_pair_is_parted() -> None:
    assert {name for first, _, _, beside in CASES for name in (first, *beside)} == set(_PAIRS)


async def test_no_partition_is_noticed_or_outlives_itself(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    if reason := missing() or (programs() is None and "PostgreSQL is not installed"):
        pytest.skip(f"partitions: {reason}")
    folder: Path = tmp_path_factory.mktemp("partitions")
    found = {}
    async with PartitionRun(
        folder, keepalive=KEEPALIVE, recovery_time=RECOVERY_TIME
    ) as partition_run:
        for name, direction, seconds, names in CASES:
            pair, beside = _PAIRS[name], [_PAIRS[each] for each in names]
            result = await partition_run.case(
                pair, direction=direction, seconds=seconds, beside=beside
            )
            if wrong := problems(result, pair, *beside, well_after=RECOVERY_TIME):
                found[f"{result.pair}: {direction}"] = wrong

    assert found == {}
