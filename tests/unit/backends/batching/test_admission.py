"""Admission keeps the device time of admitted items until their rows are queued."""

import pytest

from sluicegate.backends.batching.admission import Admission
from sluicegate.backends.batching.fair_queue import BULK
from sluicegate.backends.batching.lateness_margin import LatenessMargin
from sluicegate.backends.batching.meter import Meter
from sluicegate.backends.batching.policy import BatchLimits
from sluicegate.backends.batching.queue import RowQueue
from sluicegate.backends.batching.row import RequestWork
from sluicegate.backends.errors import Overloaded
from sluicegate.backends.executors.cost import CostModel
from tests.support.clock import Clock

COST = CostModel(base=1e-3, token=1e-4, padded=1e-5)
FLOW = ("interactive", "tenant")


@pytest.fixture
def clock() -> Clock:
    return Clock()


def make_admission(clock: Clock, margin: LatenessMargin | None = None) -> Admission:
    return Admission(
        name="tiny",
        queue=RowQueue(limits=BatchLimits(), cost=COST, clock=clock),
        meter=Meter(worker_threads=1, cost=COST, clock=clock),
        margin=margin or LatenessMargin(),
    )


@pytest.fixture
def admission(clock: Clock) -> Admission:
    return make_admission(clock)


def test_an_item_beyond_its_estimate_takes_no_time_of_others(
    admission: Admission, clock: Clock
) -> None:
    large, other = admission.admit([0.1, 0.2], time_left=10.0, flow=FLOW)

    admission.take(0.25, deadline=clock() + 10.0, flow=FLOW, reservation=large)
    after = admission.reserved
    large.release()
    other.release()

    assert after == pytest.approx(0.2)
    assert admission.reserved == 0.0


def test_admitted_bulk_items_reserve_no_time(admission: Admission) -> None:
    (item,) = admission.admit([5.0], time_left=10.0, flow=(BULK, "tenant"))

    assert (item.remaining, admission.reserved, admission.pending()) == (0.0, 0.0, 0.0)


def test_bulk_items_may_wait_until_their_deadline_where_others_are_refused(
    admission: Admission, clock: Clock
) -> None:
    admission.admit([20.0], time_left=60.0, flow=FLOW)

    with pytest.raises(Overloaded):
        admission.admit([4.0], time_left=6.0, flow=("interactive", "other"))
    (item,) = admission.admit([4.0], time_left=6.0, flow=(BULK, "other"))
    admission.take(4.0, deadline=clock() + 6.0, flow=(BULK, "other"), reservation=item)

    assert item.is_begun


def test_rows_that_another_queue_takes_use_up_no_reservation(
    admission: Admission, clock: Clock
) -> None:
    """As those of a model that was reloaded after it had admitted the item."""
    (item,) = admission.admit([0.2], time_left=10.0, flow=FLOW)

    make_admission(clock).take(0.1, deadline=clock() + 10.0, flow=FLOW, reservation=item)
    during = admission.reserved
    item.release()

    assert (during, admission.reserved) == (0.2, 0.0)


@pytest.mark.parametrize(
    ("items", "rows", "counted"),
    [
        pytest.param(1, [0], 0, id="a single row, which expired"),
        pytest.param(1, [3], 3, id="the earlier rows of an item"),
        pytest.param(3, [0], 3, id="all items of the request"),
        pytest.param(2, [5, 5], 5, id="once a request"),
        pytest.param(2, [100], 8, id="at most eight rows"),
    ],
)
def test_a_late_request_counts_the_rows_that_it_wasted(
    clock: Clock, items: int, rows: list[int], counted: int
) -> None:
    margin, other = LatenessMargin(), LatenessMargin()
    admission = make_admission(clock, margin)
    request = RequestWork(reserved=0.0, items=items)

    for number in rows:
        admission.note_late(request, number)
    other.count(in_time=0, late=counted)

    assert margin.factor == other.factor
