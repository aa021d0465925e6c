"""The fuzzer of products finds what holds up others or grows."""

from itertools import count

import msgspec

from loadtests.fuzz_amplification.judging import Observed, findings, late_timers, p99
from loadtests.fuzz_amplification.requests import lines

PAGE = """sluicegate_event_loop_lag_seconds_bucket{le="0.05",role="gateway"} %d
sluicegate_event_loop_lag_seconds_bucket{le="0.1",role="gateway"} %d
sluicegate_event_loop_lag_seconds_bucket{le="+Inf",role="gateway"} %d
sluicegate_event_loop_lag_seconds_bucket{le="+Inf",role="billing"} 99
sluicegate_event_loop_held_seconds_bucket{le="0.1",role="gateway"} %d
sluicegate_event_loop_held_seconds_bucket{le="+Inf",role="gateway"} %d
sluicegate_backend_event_loop_held_seconds_bucket{le="0.1"} %d
sluicegate_backend_event_loop_held_seconds_bucket{le="+Inf"} %d
"""


def test_a_calm_run_has_no_findings() -> None:
    observed = Observed(hits=[0.002] * 100, memory={"worker 0": 5}, bounds={"worker 0": 6})
    observed.add_answer("native embed", 200, sent=10, received=100)
    observed.add_answer("native embed", 503, sent=10, received=10)

    assert list(findings(observed)) == []
    assert observed.largest_answer == (100, "native embed")
    assert observed.largest_expansion == (10, "native embed")


def test_everything_that_is_wrong_is_named() -> None:
    observed = Observed(
        hits=[0.002] * 90 + [0.2] * 10,
        late_timers={"gateway": 3},
        held_timers={"gateway": 2, "backend": 0},
        memory={"worker 0": 7, "backend 0": 9},
        bounds={"worker 0": 6},
        replaced=["worker 0"],
    )
    observed.add_answer("native choose", 502, sent=10, received=100)

    assert list(findings(observed)) == [
        "2 times the event loop of a gateway was held for more than 100 ms",
        "the p99 of another customer's hits was 200.0 ms",
        "worker 0 took 7 bytes; its bound is 6",
        "worker 0 was replaced",
        "1 requests (native choose) ended with 502",
    ]


def test_late_timers_are_those_of_the_run_alone() -> None:
    before, after, later = (
        PAGE % counts
        for counts in (
            (5, 6, 7, 7, 7, 1, 1),
            (15, 16, 17, 17, 17, 3, 3),
            (15, 16, 20, 19, 20, 4, 6),
        )
    )

    assert late_timers(before, after, "lag") == {"gateway": 0, "backend": 0}
    assert late_timers(before, later, "lag") == {"gateway": 3, "backend": 0}
    assert late_timers(before, later, "held") == {"gateway": 1, "backend": 2}


def test_p99_leaves_out_one_of_a_hundred() -> None:
    assert p99([1.0] * 198 + [9.0] * 2) == 9.0
    assert p99([1.0] * 199 + [9.0]) == 1.0


def test_lines_of_a_batch_are_native_requests() -> None:
    found = [msgspec.json.decode(line) for line in lines(7, count(), 5).splitlines()]

    assert len(found) == 5
    assert all(line["url"].startswith("/v1/") and line["body"]["model"] for line in found)
