"""The factor on predicted waits settles where few rows wait in vain."""

import random

from sluicegate.backends.batching.lateness_margin import LatenessMargin
from sluicegate.backends.batching.policy import Release
from sluicegate.backends.batching.queue import DequeuedBatch


def test_rows_in_vain_raise_it_quickly() -> None:
    margin = LatenessMargin()
    first = margin.factor
    for _ in range(20):
        margin.count(in_time=10, late=2)
    assert margin.factor > 1.5 * first


def test_it_falls_slowly_and_not_below_the_prediction() -> None:
    margin = LatenessMargin()
    first = margin.factor
    for _ in range(100):
        margin.count(in_time=10, late=0)
    assert 0.85 * first < margin.factor < first
    for _ in range(10_000):
        margin.count(in_time=10, late=0)
    assert margin.factor >= 1.0


def test_it_settles_where_one_row_in_two_hundred_is_in_vain() -> None:
    # A row is in vain when it waits longer than predicted, times the factor.
    chooser = random.Random(3)
    margin = LatenessMargin()
    late = 0
    for turn in range(60_000):
        is_late = chooser.lognormvariate(0.0, 0.3) > margin.factor
        margin.count(in_time=int(not is_late), late=int(is_late))
        late += is_late and turn >= 20_000
    assert 0.003 < late / 40_000 < 0.008


def test_a_storm_does_not_raise_it_without_bound() -> None:
    margin = LatenessMargin()
    margin.count(in_time=0, late=100_000)
    assert margin.factor <= 4.0


def test_with_time_it_falls_back_to_where_it_began() -> None:
    nothing = DequeuedBatch(
        rows=[],
        dropped=[],
        release=Release.IDLE,
        seconds=0.0,
        work=0.0,
        more=False,
        waiting_since=0.0,
    )
    margin = LatenessMargin()
    first = margin.factor
    margin.learn(nothing, 100.0)
    margin.count(in_time=0, late=100)
    raised = margin.factor

    margin.learn(nothing, 101.0)
    soon = margin.factor
    margin.learn(nothing, 200.0)

    assert raised > soon > 0.9 * raised
    assert first <= margin.factor < 1.05 * first
