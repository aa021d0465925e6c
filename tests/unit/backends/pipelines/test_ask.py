"""What an algorithm is given counts the item as long as the item is where it says."""

import math
from contextlib import suppress

from sluicegate.backends.batching.coalescing import HostedItems, RowCaller
from sluicegate.backends.pipelines.ask import AlgorithmContext


def test_the_time_left_is_by_the_clock_of_the_deadline() -> None:
    context = AlgorithmContext({}, RowCaller(scope="s", deadline=5.0), clock=lambda: 3.0)

    assert context.time_left == context.in_background().time_left == 2.0


def test_an_item_that_fails_in_a_host_no_longer_runs_there() -> None:
    hosted = HostedItems()
    context = AlgorithmContext({}, RowCaller(scope="s", deadline=math.inf, hosted=hosted))

    counts = []
    with suppress(ValueError), context.hosted():
        counts.append(hosted.count)
        raise ValueError("refused")

    assert [*counts, hosted.count] == [1, 0]
