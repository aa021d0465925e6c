"""Packets dropped between two processes for a moment: nobody notices, and all is well afterwards.

`make arena-partitions` does this with the settings that are shipped, for 5 and for 120 seconds.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from gateway.sockets.tcp_keepalive import TcpKeepalive
from loadtests.harness.postgresql import programs
from loadtests.partitions.cases import PAIRS, Direction, ProcessPair
from loadtests.partitions.judging import problems
from loadtests.partitions.namespaces import missing
from loadtests.partitions.run import PartitionRun

pytestmark = [pytest.mark.anyio, pytest.mark.system, pytest.mark.timeout(1800)]

# Long enough for keep-alive to give up while packets are dropped, as it does in a long partition.
KEEPALIVE = TcpKeepalive(idle=1, interval=1, count=2, user_timeout=2.0)
GIVEN_UP, MOMENT = 5.0, 1.5
RECOVERY_TIME = 240.0
"""Seconds until all is well without a hand; on a machine that does other things as well, long."""


GROUPS = (
    ("gateway, cache", "admin, state", "billing, ledger"),
    ("gateway, eu-0", "shipper, state", "admin, ledger"),
    ("gateway, ledger", "billing, state", "admin, cache"),
    ("gateway, every backend", "request-log, state", "shipper, ledger"),
)
"""Pairs that are parted at once: one does not hide what another does."""


def cases() -> Iterator[tuple[Sequence[ProcessPair], Direction, float]]:
    """Yield each pair, and the directions of the one whose subscription must be given up."""
    pairs = {pair.name: pair for pair in PAIRS}
    for direction in Direction:
        yield [pairs["gateway, state"]], direction, GIVEN_UP
    for group in GROUPS:
        yield [pairs[name] for name in group], Direction.BOTH, MOMENT


def test_every_pair_is_parted() -> None:
    assert {pair.name for parted, *_ in cases() for pair in parted} == {p.name for p in PAIRS}


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
        for pairs, direction, seconds in cases():
            result = await partition_run.case(*pairs, direction=direction, seconds=seconds)
            if wrong := problems(result, *pairs, well_after=RECOVERY_TIME):
                found[f"{result.pair}: {direction}"] = wrong

    assert found == {}
