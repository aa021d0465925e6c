"""Tests how runs of traced hits become lines of their tables."""

from loadtests.steady import SteadyLoadResult
from loadtests.traced_hits import latency_of, span_counts
from loadtests.turns import paired


def run(p99: float, *, failed: int = 0) -> SteadyLoadResult:
    return SteadyLoadResult(
        rate=100.0,
        sent=100,
        failed=failed,
        is_first=True,
        latencies=[0.001] * 98 + [p99] * 2,
        late=[0.0],
        prompt=[0.002],
    )


def test_rounds_are_compared_one_by_one() -> None:
    assert paired([10.0, 20.0, 60.0], [20.0, 20.0, 40.0]) == 1.0


def test_the_run_in_the_middle_counts_and_every_failure() -> None:
    line = latency_of("x", 50.0, [run(0.009, failed=2), run(0.003), run(0.005)], {"dropped": 4})

    assert (line.p50, line.p99, line.prompt_p99, line.failed) == (1.0, 5.0, 2.0, 2)
    assert line.spans == {"dropped": 4}


def test_spans_of_all_workers_are_counted() -> None:
    metrics = """\
sluicegate_trace_spans_total{outcome="dropped"} 1e+03
sluicegate_events_dropped_total{stream="usage"} 7.0
sluicegate_trace_spans_total{outcome="exported"} 5.0
"""
    assert span_counts(metrics) == {"exported": 5, "failed": 0, "dropped": 1000}
