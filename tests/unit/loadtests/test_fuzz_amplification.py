"""The fuzzer of products finds what holds up others or grows."""

from collections import Counter
from itertools import count

import msgspec

from loadtests.fuzz_amplification.command import Observed, findings, held_timers
from loadtests.fuzz_amplification.requests import lines
from loadtests.fuzz_amplification.sending import Answer

PAGE = """sluicegate_event_loop_lag_seconds_bucket{le="0.1",role="gateway"} 1
sluicegate_event_loop_lag_seconds_bucket{le="+Inf",role="gateway"} 9
sluicegate_event_loop_held_seconds_bucket{le="0.05",role="gateway"} 1
sluicegate_event_loop_held_seconds_bucket{le="0.1",role="gateway"} %d
sluicegate_event_loop_held_seconds_bucket{le="+Inf",role="gateway"} %d
sluicegate_event_loop_held_seconds_bucket{le="+Inf",role="billing"} 99
sluicegate_backend_event_loop_held_seconds_bucket{le="0.1"} %d
sluicegate_backend_event_loop_held_seconds_bucket{le="+Inf"} %d
"""


CALM = Observed(
    answers=[Answer("native embed", 200, 10, 100), Answer("native embed", 503, 10, 10)],
    calm_hits=[0.002],
    hits=[0.002] * 100,
    held=Counter(),
    memory={"gateway 0": 5},
    replaced=[],
)


def test_a_calm_run_has_no_findings() -> None:
    assert list(findings(CALM)) == []


def test_everything_that_is_wrong_is_named() -> None:
    observed = msgspec.structs.replace(
        CALM,
        answers=[*CALM.answers, Answer("native choose", 502, 10, 100)],
        hits=[0.002] * 90 + [0.2] * 10,
        held=Counter({"gateway": 2}),
        memory={"gateway 0": 2**30 + 1, "backend 0": 2**30},
        replaced=["gateway 0"],
    )

    assert list(findings(observed)) == [
        "2 times the event loop of a gateway was held for more than 100 ms",
        "the p99 of another customer's hits was 200.0 ms",
        "gateway 0 took 1,073,741,825 bytes; its bound is 1,073,741,824",
        "gateway 0 was replaced",
        "1 requests (native choose) ended with 502",
    ]


def test_held_timers_are_those_of_the_run_alone() -> None:
    before, after, later = (
        held_timers(PAGE % counts) for counts in ((7, 7, 1, 1), (17, 17, 3, 3), (19, 20, 4, 6))
    )

    assert after - before == {}
    assert later - before == {"gateway": 1, "backend": 2}


def test_lines_of_a_batch_are_native_requests() -> None:
    found = [msgspec.json.decode(line) for line in lines(7, count(), 5).splitlines()]

    assert len(found) == 5
    assert all(line["url"].startswith("/v1/") and line["body"]["model"] for line in found)
