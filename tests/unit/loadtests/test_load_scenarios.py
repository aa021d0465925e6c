"""What a load test sends, how it is judged, and what its command refuses."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from loadtests.machine import Machine
from loadtests.scenarios import k6
from loadtests.scenarios.analysis import (
    Capacity,
    CapacityStep,
    Run,
    Samples,
    Verdict,
    figures,
    highest,
    step_of,
    verdicts,
)
from loadtests.scenarios.catalogue import SCENARIOS, Phase, Plan
from loadtests.scenarios.command import scenarios_command
from loadtests.scenarios.local_system import Mark, UseSample
from loadtests.scenarios.report import write_report
from loadtests.scenarios.workload import Mix, make_workload, templates
from testing.ports import free_port

MACHINE = Machine(
    cpu="a cpu", cores=2, memory_gib=4, python="3.11", date="2026-01-01", commit="abc"
)
PLAN = Plan(phases=SCENARIOS["spike"].phases(6.0, 40.0))
MODELS = {"sentiment": ["classify"], "minilm": ["embed", "rerank"], "nli": ["zero-shot", "choose"]}


def lines(*, goodput: float, refusal: str = "503,0,0,m,1", after: float = 20.0) -> Iterator[str]:
    """Yield a spike's answers: `goodput` a second of the spike in time, the others refused."""
    yield "began,0"
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
        scenario="spike",
        command="python -m loadtests.scenarios spike",
        target="http://127.0.0.1",
        generator="k6",
        machine=MACHINE,
        seed=1,
        zipf=0.0,
        requests=("classify sentiment",),
        tenants=1,
        deadline=1.0,
        price=0.36,
        plan=PLAN,
        capacity=Capacity(rate=10.0, closed_loop=11.0, steps=()),
        dropped=dropped,
        users=10,
        use=tuple(
            UseSample(at=at, processor={"load generator": at / 4}, memory={"gateway": 100.0})
            for at in (0.0, 20.0, 45.0)
        ),
        marks=(Mark(at=3.0, what="backend killed"),),
        samples=Samples.parse(given),
        ideal=np.zeros(PLAN.arrivals, dtype=np.bool_),
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
    assert not judged(run(iter(["began,0"])))["answers"].holds


def test_figures_are_those_of_the_requests_sent_in_a_phase() -> None:
    phases = {phase.name: phase for phase in figures(run(lines(goodput=9.0)))}

    assert phases["before"].codes == {"200": 60}
    assert phases["before"].goodput == pytest.approx(6.0)
    assert phases["before"].p50 == pytest.approx(0.02)
    assert phases["before"].cost_per_million == pytest.approx(0.36 / 3600 / 6 * 1e6)
    assert phases["spike"].codes["503"] == pytest.approx(51 * 14, abs=5)


def test_the_report_has_what_fails_and_what_was_killed(tmp_path: Path) -> None:
    found = run(lines(goodput=8.0))

    text = write_report(found, list(figures(found)), list(verdicts(found)), tmp_path).read_text()

    assert "| FAILS |" in text
    assert "| 3.0 | backend killed |" in text
    assert "<svg" in (tmp_path / "plots.svg").read_text()
    assert b'"p99"' in (tmp_path / "result.json").read_bytes()


def test_the_capacity_is_the_last_rate_before_one_that_was_not_sustained() -> None:
    steps = [
        CapacityStep(rate=rate, goodput=rate, is_sustained=holds)
        for rate, holds in ((70.0, True), (80.0, True), (90.0, False), (100.0, True))
    ]

    assert highest(steps) == 80.0
    assert highest([CapacityStep(rate=9.0, goodput=4.0, is_sustained=False)]) == 4.0


def test_a_rate_whose_queue_grows_is_not_sustained() -> None:
    grows = [f"{index * 100},{20 + index * 8},200,0,0,m,0" for index in range(50)]
    quick = [f"{index * 100},20,200,0,0,m,0" for index in range(50)]

    grown, kept = (
        step_of(Samples.parse(["began,0", *each]), 10.0, 0.0, 5.0, 1.0) for each in (grows, quick)
    )

    assert not grown.is_sustained
    assert kept.is_sustained
    assert kept.goodput == pytest.approx(10.0)


def mix(zipf: float = 0.0, *, seed: int = 1) -> Mix:
    return Mix(templates=tuple(templates(MODELS)), tenants=3, zipf=zipf, distinct=1000, seed=seed)


def test_the_same_seed_gives_the_same_requests() -> None:
    first, same = (make_workload(mix(1.0), PLAN, salt=1).requests for _ in range(2))
    other = make_workload(mix(1.0, seed=2), PLAN, salt=1).requests

    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)


def test_without_repeats_no_text_comes_twice() -> None:
    workload = make_workload(mix(), PLAN, salt=1)

    assert len(np.unique(workload.requests[:, 1])) == PLAN.arrivals
    assert not workload.ideal_hits().any()


def test_a_phase_of_new_texts_repeats_none_of_those_before() -> None:
    cold = Phase(name="cold", rate=100.0, duration=10.0)
    other = Phase(name="other", rate=100.0, duration=10.0, new_texts=True)

    numbers = make_workload(mix(1.0), Plan(phases=(cold, other)), salt=1).requests[:, 1]

    assert not set(numbers[:1000].tolist()) & set(numbers[1000:].tolist())


@pytest.fixture
def key_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(k6, "program", lambda: "/nowhere/k6")
    (tmp_path / "keys").write_text("sk-one\nsk-two\n")
    (tmp_path / "empty").write_text("\n")
    return str(tmp_path / "keys")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["chaos", "--url", "http://a.example", "--key-file", "KEYS"], "only on this machine"),
        (["steady", "--url", "http://a.example"], "belong together"),
        (["steady", "--key-file", "KEYS"], "belong together"),
        (["steady", "--url", "a.example:80", "--key-file", "KEYS"], "is like https://"),
        (["steady", "--url", "http://me:pw@a.example", "--key-file", "KEYS"], "is like https://"),
        (["steady", "--url", "http://127.0.0.1:PORT", "--key-file", "KEYS"], "does not answer"),
        (["steady", "--url", "http://a.example", "--key-file", "EMPTY"], "holds no key"),
    ],
)
def test_the_command_refuses_what_cannot_be(arguments: list[str], said: str, key_file: str) -> None:
    filled = {"KEYS": key_file, "EMPTY": key_file.replace("keys", "empty")}
    given = [filled.get(each, each).replace("PORT", str(free_port())) for each in arguments]

    result = CliRunner().invoke(scenarios_command, given)

    assert result.exit_code != 0
    assert "Traceback" not in result.output
    assert said in result.output
