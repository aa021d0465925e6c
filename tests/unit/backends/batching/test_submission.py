"""What is refused counts as demand for the device, as what is queued."""

import numpy as np
import pytest

from sluicegate.backends.batching.admission import Admission
from sluicegate.backends.batching.device import Device
from sluicegate.backends.batching.lateness_margin import LatenessMargin
from sluicegate.backends.batching.meter import Meter
from sluicegate.backends.batching.policy import BatchLimits
from sluicegate.backends.batching.queue import RowQueue
from sluicegate.backends.batching.row import Row
from sluicegate.backends.batching.submission import QueueLimits, SubmissionQueue
from sluicegate.backends.errors import Overloaded
from sluicegate.backends.executors.cost import CostModel
from sluicegate.backends.telemetry.spans import NO_SPAN
from sluicegate.backends.types import Encoding, OutputKind
from tests.support.clock import Clock

COST = CostModel(base=1e-3, token=1e-4, padded=1e-5)


def test_rows_refused_as_late_count_as_demand_for_the_device() -> None:
    clock = Clock()
    share = Device(slots=1, clock=clock).share()
    queue = RowQueue(limits=BatchLimits(), cost=COST, clock=clock)
    meter = Meter(worker_threads=1, cost=COST, clock=clock)
    admission = Admission(name="tiny", queue=queue, meter=meter, margin=LatenessMargin())
    submissions = SubmissionQueue(
        limits=QueueLimits(), queue=queue, admission=admission, cost=COST, share=share, clock=clock
    )
    row = Row(
        encoding=Encoding(ids=np.ones(10, dtype=np.int32), type_ids=None, key=b""),
        key=("tenant", "graph", OutputKind.POOLED, b""),
        deadline=clock() + 1.0,
        span=NO_SPAN,
        settle=lambda _row, _value: None,
    )
    admission.admit([5.0], time_left=60.0, flow=row.flow)

    with pytest.raises(Overloaded):
        submissions.submit([row])

    assert submissions.refused == 1
    assert share.faded(clock()) == pytest.approx(COST.alone(10))
