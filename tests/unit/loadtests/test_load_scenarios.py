"""What a load test sends, how it is judged, and what its command refuses."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from loadtests.scenarios import k6
from loadtests.scenarios.analysis import (
    Capacity,
    Run,
    Verdict,
    figures,
    highest,
    read_answers,
    verdicts,
)
from loadtests.scenarios.catalogue import SCENARIOS, Options, Phase, Plan
from loadtests.scenarios.command import scenarios_command
from loadtests.scenarios.report import write_report
from loadtests.scenarios.system import Mark, UseSample
from loadtests.scenarios.workload import Requests, ideal_hits, make_requests, templates
from testing.ports import free_port

PLAN = Plan(phases=SCENARIOS["spike"].phases(6.0, 40.0))
MODELS = {"sentiment": ["classify"], "minilm": ["embed", "rerank"], "nli": ["zero-shot", "choose"]}


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


def run(given: Iterator[str], *, dropped: int = 0, folder: Path = Path("nowhere")) -> Run:
    return Run(
        options=Options(scenario="spike", folder=folder, price=0.36),
        facts={"generator": "k6"},
        plan=PLAN,
        capacity=Capacity(rate=10.0, closed_loop=11.0),
        answers=read_answers(given),
        ideal=0,
        dropped=dropped,
        use=[
            UseSample(at=at, processor={"load generator": at / 4}, memory={"gateway": 100.0})
            for at in (0.0, 20.0, 45.0)
        ],
        marks=[Mark(at=3.0, what="backend killed")],
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
    phases = {phase["name"]: phase for phase in figures(run(lines(goodput=9.0)))}

    before = phases["before"]
    assert before["codes"] == {"200": 60}
    assert before["goodput"] == pytest.approx(6.0)
    assert before["p50"] == pytest.approx(0.02)
    assert before["cost_per_million"] == pytest.approx(0.36 / 3600 / 6 * 1e6)
    assert phases["spike"]["codes"]["503"] == pytest.approx(51 * 14, abs=5)


def test_the_report_has_what_fails_and_what_was_killed(tmp_path: Path) -> None:
    path, holds = write_report(run(lines(goodput=8.0), folder=tmp_path))

    text = path.read_text()
    assert not holds
    assert "| FAILS |" in text
    assert "| 3.0 | backend killed |" in text
    assert "<svg" in (tmp_path / "plots.svg").read_text()
    assert b'"p99"' in (tmp_path / "result.json").read_bytes()


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


def requests(zipf: float = 0.0, *, seed: int = 1, plan: Plan = PLAN) -> Requests:
    kinds = list(templates(MODELS))
    return make_requests(kinds, plan, tenants=3, seed=seed, zipf=zipf, distinct=1000)


def test_the_same_seed_gives_the_same_requests() -> None:
    assert np.array_equal(requests(1.0), requests(1.0))
    assert not np.array_equal(requests(1.0), requests(1.0, seed=2))


def test_without_repeats_no_text_comes_twice() -> None:
    assert len(np.unique(requests()[:, 1])) == PLAN.arrivals
    assert ideal_hits(requests()) == 0
    assert ideal_hits(requests(1.0)) > 0


def test_a_phase_of_new_texts_repeats_none_of_those_before() -> None:
    cold = Phase(name="cold", rate=100.0, duration=10.0)
    other = Phase(name="other", rate=100.0, duration=10.0, new_texts=True)

    numbers = requests(1.0, plan=Plan(phases=(cold, other)))[:, 1]

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
