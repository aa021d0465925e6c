"""The GPU report finds wrong answers and failed figures."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from loadtests.generator import Outcome
from loadtests.gpu.full_path import summary
from loadtests.gpu.plan import LARGE, Options
from loadtests.gpu.results import Measurement, Report, Section, begin, write
from loadtests.gpu.sessions import distance
from sluicegate.wire.protocol import Report as Load, ServingState


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(output=tmp_path, work=tmp_path, provider="cpu", tiny=True)


@pytest.fixture
def report(options: Options) -> Report:
    return begin(options)


def test_an_answer_that_is_not_a_number_is_infinitely_wrong() -> None:
    expected = np.ones((2, 3), dtype=np.float32)
    broken = expected.copy()
    broken[1, 2] = np.nan

    assert distance(broken, expected) == float("inf")
    assert distance(expected * np.float32(1.01), expected) == pytest.approx(0.01, rel=1e-3)


def test_one_wrong_row_among_right_ones_shows() -> None:
    expected = np.ones((100, 4), dtype=np.float32)
    wrong = expected.copy()
    wrong[57] = 0

    assert distance(wrong, expected) == pytest.approx(1.0)


def test_the_fastest_form_whose_answers_were_right_is_found(report: Report) -> None:
    batch = "session, bert-base, 256x128"
    assert report.fastest(LARGE) is None

    report.sections["session"] = Section(
        figures={
            f"{batch}, fp16-fused": Measurement(rate=100.0),
            f"{batch}, fp16-ranges-k2": Measurement(rate=300.0),
            f"{batch}, fp16-packed": Measurement(rate=900.0, passed=False),
        }
    )

    found = report.fastest(LARGE)
    assert found is not None
    assert (found.form.attention, found.kernels) == ("ranges", 2)


@pytest.mark.parametrize(
    ("provider", "statuses", "problem"),
    [
        ("CUDAExecutionProvider", {200: 10}, ""),
        ("CUDAExecutionProvider", {200: 9, 503: 1}, "1 requests were not answered with 200"),
        ("CPUExecutionProvider", {200: 10}, "a backend runs on `CPUExecutionProvider`"),
    ],
)
def test_a_figure_fails_by_refusals_and_where_a_cpu_served(
    options: Options, provider: str, statuses: dict[int, int], problem: str
) -> None:
    on_a_gpu = msgspec.structs.replace(options, provider="cuda")
    runs = [Outcome(duration=2.0, statuses=statuses, latencies=[0.1])]
    state = ServingState(
        backend_id="b",
        region="eu",
        ready=True,
        missing=[],
        provider=provider,
        models=[],
        report=Load(),
    )

    found = summary(on_a_gpu, runs, [state], items=64, length=24)

    assert found.passed == (not problem)
    assert problem in found.note
    assert found.rate == statuses[200] / 2.0 * 64


def test_another_run_keeps_what_was_right_and_measures_the_rest(
    options: Options, report: Report
) -> None:
    right, wrong = Measurement(rate=1.0), Measurement(passed=False)
    report.sections = {
        "check": Section(status="done", figures={"a": right, "b": wrong}),
        "session": Section(figures={"c": right, "d": wrong}),
        "engine": Section(status="done", figures={"e": right}),
    }
    write(report, options.output)

    found = begin(options, again=["engine"])

    assert set(found.figures) == {"a", "b", "c"}
    on_a_gpu = msgspec.structs.replace(options, provider="cuda")
    assert begin(on_a_gpu).figures == {}
