"""Rows that run after their deadline are told of."""

from backends.batching.meter import Meter
from tests.support.clock import Clock


def test_rows_begun_after_their_deadline_are_counted() -> None:
    meter = Meter(worker_threads=1, clock=Clock())

    meter.count(rows=3, tokens=30, padded_tokens=30, took=0.1, late=2)
    meter.count(rows=1, tokens=10, padded_tokens=10, took=0.1)

    counted = meter.statistics(queued_rows=0, queued_tokens=0, skipped=0, expired=0, refused=0)
    assert counted.late_rows == 2
