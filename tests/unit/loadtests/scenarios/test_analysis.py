"""Tests the judgement of runs, on answers made up for it, and the report's page."""

import re
from collections.abc import Iterator

import numpy as np
import pytest

from loadtests.machine import Machine
from loadtests.scenarios.analysis import Run, Verdict, cost_per_million, figures, verdicts
from loadtests.scenarios.capacity import Capacity, CapacityStep, highest, step_of
from loadtests.scenarios.catalogue import SCENARIOS
from loadtests.scenarios.faults import Mark
from loadtests.scenarios.k6 import K6Result
from loadtests.scenarios.plan import Plan
from loadtests.scenarios.plots import draw_run
from loadtests.scenarios.processes import UseSample, cores_used
from loadtests.scenarios.report import page, text_table
from loadtests.scenarios.samples import Samples

MACHINE = Machine(
    cpu="<a cpu>", cores=2, memory_gib=4, python="3.11", date="2026-01-01", commit="abc"
)
SECONDS, RATE, CAPACITY = 40.0, 6.0, 10.0


def _lines(*, goodput: float, refusal: str = "503,0,0,m,1", after: float = 20.0) -> Iterator[str]:
    """Yield a spike's answers: `goodput` a second of the spike in time, the others refused."""
    yield "began,0"
    for phase, begin, end in _plan().spans():
        count = phase.arrivals
        for index in range(count):
            at = (begin + index * (end - begin) / count) * 1000
            is_done = not phase.is_overload or index * goodput // phase.rate != (
                (index + 1) * goodput // phase.rate
            )
            latency = after if phase.name == "after" else 20.0
            yield f"{at:.0f},{latency},{'200,0,0,m,0' if is_done else refusal}"


def _plan() -> Plan:
    return Plan(phases=SCENARIOS["spike"].phases(RATE, SECONDS))


def _run(lines: Iterator[str], *, dropped: int = 0, scenario: str = "spike") -> Run:
    samples = Samples.parse(lines)
    return Run(
        scenario=scenario,
        question="<what>?",
        command="python -m loadtests.scenarios spike",
        target="http://127.0.0.1",
        generator="k6",
        machine=MACHINE,
        seed=1,
        zipf=0.0,
        mix=("classify sentiment",),
        tenants=1,
        deadline=1.0,
        price=0.36,
        plan=_plan(),
        capacity=Capacity(rate=CAPACITY, closed_loop=11.0, steps=()),
        result=K6Result(samples=samples, dropped=dropped, users=10),
        ideal=np.zeros(_plan().arrivals, dtype=np.bool_),
        use=tuple(
            UseSample(at=at, processor={"load generator": at / 4}, memory={"gateway": 100.0})
            for at in (0.0, 20.0, 45.0)
        ),
        marks=(Mark(at=3.0, what="backend killed"),),
    )


def _judged(run: Run) -> dict[str, Verdict]:
    return {one.what.split()[0]: one for one in verdicts(run, SCENARIOS["spike"].criteria)}


def test_a_spike_whose_surplus_is_refused_holds() -> None:
    found = _judged(_run(_lines(goodput=9.7)))

    assert {what: one.holds for what, one in found.items()} == {
        "answers": True,
        "dropped:": True,
        "answered": True,
        "least": True,
    }


@pytest.mark.parametrize("refusal", ["503,0,0,m,0", "504,0,0,m,1", "0,0,0,,0"])
def test_every_answer_but_a_refusal_that_says_when_to_return_is_an_error(refusal: str) -> None:
    found = _judged(_run(_lines(goodput=9.7, refusal=refusal)))

    assert not found["answers"].holds


def test_a_goodput_below_nine_tenths_of_the_capacity_fails() -> None:
    found = _judged(_run(_lines(goodput=8.0)))

    assert not found["least"].holds
    assert float(found["least"].found) == pytest.approx(0.8, abs=0.05)


def test_answers_that_stay_late_after_a_spike_fail() -> None:
    found = _judged(_run(_lines(goodput=9.7, after=1500.0)))

    assert not found["answered"].holds


def test_a_generator_that_could_not_send_what_was_due_fails() -> None:
    found = _judged(_run(_lines(goodput=9.7), dropped=100))

    assert not found["dropped:"].holds


def test_a_run_without_answers_fails() -> None:
    found = _judged(_run(iter(["began,0"])))

    assert not found["answers"].holds


def test_figures_are_those_of_the_requests_sent_in_a_phase() -> None:
    phases = {phase.name: phase for phase in figures(_run(_lines(goodput=9.0)))}

    assert phases["before"].codes == {"200": 60}
    assert phases["before"].goodput == pytest.approx(6.0)
    assert phases["before"].p50 == pytest.approx(0.02)
    assert phases["spike"].codes["503"] == pytest.approx(51 * 14, abs=5)
    assert phases["before"].cost_per_million == pytest.approx(0.36 / 3600 / 6 * 1e6)
    assert cost_per_million(1.0, 0.0) is None


def test_cores_are_processor_time_by_time() -> None:
    run = _run(_lines(goodput=9.0))

    assert cores_used(run.use, 0.0, 60.0) == {"load generator": pytest.approx(0.25)}
    assert cores_used(run.use, 1.0, 2.0) == {}


def test_the_report_is_one_page_that_needs_nothing_else() -> None:
    run = _run(_lines(goodput=9.0))
    phases, judged = list(figures(run)), list(verdicts(run, SCENARIOS["spike"].criteria))

    text = page(run, phases, judged, draw_run(run, phases))

    assert text.count("<svg") == 8
    assert "&lt;what&gt;?" in text
    assert "backend killed" in text
    links = re.findall(r"""(?:src|href)=["']?([^"'\s>]+)""", text)
    assert all(link.startswith("#") for link in links)


def test_the_terminal_shows_what_fails() -> None:
    run = _run(_lines(goodput=8.0))

    shown = text_table(list(figures(run)), list(verdicts(run, SCENARIOS["spike"].criteria)))

    assert "| spike | 60 |" in shown
    assert "NO |" in shown


def test_the_capacity_is_the_last_rate_before_one_that_was_not_sustained() -> None:
    steps = [
        CapacityStep(rate=rate, goodput=rate, is_sustained=holds)
        for rate, holds in ((70.0, True), (80.0, True), (90.0, False), (100.0, True))
    ]

    assert highest(steps) == 80.0
    assert highest([CapacityStep(rate=9.0, goodput=4.0, is_sustained=False)]) == 4.0


def test_a_rate_whose_queue_grows_is_not_sustained() -> None:
    lines = [f"{index * 100},{20 + index * 8},200,0,0,m,0" for index in range(50)]
    quick = [f"{index * 100},20,200,0,0,m,0" for index in range(50)]

    grown, kept = (
        step_of(Samples.parse(["began,0", *each]), 10.0, 0.0, 5.0, 1.0) for each in (lines, quick)
    )

    assert not grown.is_sustained
    assert kept.is_sustained
    assert kept.goodput == pytest.approx(10.0)
