"""How a load test judges a run."""

import re
from collections.abc import Iterator

import msgspec
import pytest

from loadtests.scenarios.analysis import (
    Run,
    Sent,
    Verdict,
    figures,
    highest,
    read_answers,
    verdicts,
)
from loadtests.scenarios.catalogue import SCENARIOS, Phase, Plan

PLAN = Plan(phases=SCENARIOS["spike"].phases(6.0, 40.0))


def lines(*, goodput: float, refusal: str = "503,0,0,m,1", after: float = 20.0) -> Iterator[str]:
    """Yield a spike's answers: `goodput` a second of the spike in time, the others refused."""
    for phase, begin, end in PLAN.spans():
        for index in range(phase.arrivals):
            at = (begin + index * (end - begin) / phase.arrivals) * 1000
            is_done = not phase.is_overload or index * goodput // phase.rate != (
                (index + 1) * goodput // phase.rate
            )
            latency = after if phase.name == "after" else 20.0
            yield f"{at:.0f},{latency},{'200,0,0,m,0' if is_done else refusal}"


def run(given: Iterator[str], *, dropped: int = 0) -> Run:
    return Run(
        scenario=SCENARIOS["spike"],
        plan=PLAN,
        deadline=1.0,
        capacity=10.0,
        sent=Sent(answers=read_answers(given), ideal=0, dropped=dropped),
    )


def judged(found: Run) -> dict[str, Verdict]:
    return {one.what.split()[0].strip(":"): one for one in verdicts(found)}


def test_a_spike_whose_surplus_is_refused_holds() -> None:
    found = judged(run(lines(goodput=9.7)))

    assert set(found) == {"answers", "dropped", "answered", "least"}
    assert all(one.holds for one in found.values())


@pytest.mark.parametrize("refusal", ["503,0,0,m,0", "504,0,0,m,1", "0,0,0,,0"])
def test_every_answer_but_a_refusal_that_says_when_to_return_is_an_error(refusal: str) -> None:
    assert not judged(run(lines(goodput=9.7, refusal=refusal)))["answers"].holds


def test_a_goodput_below_nine_tenths_of_the_capacity_fails() -> None:
    found = judged(run(lines(goodput=8.0)))["least"]

    assert not found.holds
    assert float(found.found) == pytest.approx(0.8, abs=0.05)


def test_answers_that_stay_late_after_a_spike_fail() -> None:
    assert not judged(run(lines(goodput=9.7, after=1500.0)))["answered"].holds


def test_a_generator_that_could_not_send_what_was_due_fails() -> None:
    assert not judged(run(lines(goodput=9.7), dropped=100))["dropped"].holds


def test_a_run_without_answers_fails() -> None:
    assert not judged(run(iter([])))["answers"].holds


def test_figures_are_those_of_the_requests_sent_in_a_phase() -> None:
    phases = {phase["phase"]: phase for phase in figures(run(lines(goodput=9.0)))}

    before = phases["before"]
    assert before["answers"] == "200: 60"
    assert before["in time/s"] == "6"
    assert before["p50 ms"] == "20.0"
    refusals = re.search(r"503: (\d+)", phases["spike"]["answers"])
    assert refusals is not None
    assert int(refusals[1]) == pytest.approx(51 * 14, abs=5)


def at_rates(*latencies: float) -> tuple[list[str], Plan]:
    """Return answers to ten requests a second: in each phase the latency grows, in ms a phase."""
    answers = [
        f"{phase * 5000 + index * 100},{20 + index * latency / 50},200,0,0,m,0"
        for phase, latency in enumerate(latencies)
        for index in range(50)
    ]
    phases = (Phase(name="", rate=10.0, duration=5.0) for _ in latencies)
    return answers, Plan(phases=tuple(phases))


def test_the_capacity_is_the_last_rate_before_one_whose_queue_grows() -> None:
    answers, plan = at_rates(0, 0, 400, 0)
    rising = Plan(
        phases=tuple(
            msgspec.structs.replace(phase, rate=10.0 + number / 100)
            for number, phase in enumerate(plan.phases)
        )
    )

    assert highest(read_answers(answers), rising, 1.0) == 10.01


def test_the_capacity_is_the_best_goodput_where_no_rate_is_sustained() -> None:
    answers, plan = at_rates(400)

    assert highest(read_answers(answers), plan, 1.0) == pytest.approx(10.0)
    assert highest(read_answers(answers[:20]), plan, 1.0) == pytest.approx(4.0)
