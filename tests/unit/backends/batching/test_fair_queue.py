"""Whose row leads the next batch."""

import numpy as np
import pytest

from sluicegate.backends.batching.fair_queue import FairQueue
from sluicegate.backends.batching.row import Row
from sluicegate.backends.telemetry.spans import NO_SPAN
from sluicegate.backends.types import Encoding, OutputKind

pytestmark = pytest.mark.anyio


def make_row(scope: str, *, deadline: float = 100.0, lane: str = "interactive") -> Row:
    ids = np.ones(4, dtype=np.int32)
    return Row(
        encoding=Encoding(ids=ids, type_ids=None, key=ids.tobytes()),
        key=(scope, "graph", OutputKind.POOLED, ids.tobytes()),
        deadline=deadline,
        span=NO_SPAN,
        settle=lambda _row, _value: None,
        lane=lane,
    )


def serve(flows: FairQueue, count: int) -> list[tuple[str, str]]:
    served = []
    for _ in range(count):
        row = flows.lead()
        assert row is not None
        row.is_dequeued = True
        flows.remove(row, 1.0)
        served.append(row.flow)
    return served


async def test_a_tenant_with_much_to_do_does_not_hold_up_one_with_little() -> None:
    flows = FairQueue()
    for _ in range(20):
        flows.add(make_row("busy"))
    serve(flows, 5)
    flows.add(make_row("quiet"))
    flows.add(make_row("quiet"))

    served = serve(flows, 4)

    assert served.count(("interactive", "quiet")) == 2


async def test_bulk_work_gets_a_tenth_beside_interactive_work() -> None:
    flows = FairQueue()
    for _ in range(110):
        flows.add(make_row("tenant"))
        flows.add(make_row("tenant", lane="bulk"))

    served = serve(flows, 110)

    assert 9 <= served.count(("bulk", "tenant")) <= 11


async def test_the_row_with_the_least_time_left_comes_first() -> None:
    flows = FairQueue()
    flows.add(make_row("tenant", deadline=50.0))
    flows.add(make_row("tenant", deadline=10.0))

    row = flows.lead()

    assert row is not None
    assert row.deadline == 10.0


async def test_absence_earns_nothing() -> None:
    flows = FairQueue()
    for _ in range(30):
        flows.add(make_row("steady"))
    serve(flows, 10)
    for _ in range(10):
        flows.add(make_row("back"))

    served = serve(flows, 10)

    assert 4 <= served.count(("interactive", "back")) <= 6


async def test_rows_taken_elsewhere_are_left_out() -> None:
    flows = FairQueue()
    first, second = make_row("tenant", deadline=1.0), make_row("tenant", deadline=2.0)
    flows.add(first)
    flows.add(second)
    first.is_dequeued = True
    flows.remove(first, 1.0)

    assert flows.lead() is second
    assert list(flows.rows()) == [second]
