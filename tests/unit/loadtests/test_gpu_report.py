"""Tests the GPU report: time budgets, wrong answers, ratios."""

from itertools import islice
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tokenizers import Tokenizer

from backends.protocol import Report as Load, ServingState
from loadtests.gpu.command import run_section
from loadtests.gpu.correctness import write_family
from loadtests.gpu.device import Device
from loadtests.gpu.full_path import LoadResult, summary
from loadtests.gpu.models import texts, write_tokenizer
from loadtests.gpu.plan import (
    BUDGETS,
    CHECKED,
    FIGURES,
    LARGE,
    SECTIONS,
    Figure,
    Options,
    figures_of,
    sections_in_order,
)
from loadtests.gpu.results import (
    Journal,
    Measurement,
    Report,
    fastest,
    known_figures,
    open_report,
    ratios,
    write_report,
)
from loadtests.gpu.sessions import distance

THROUGH = "through the gateway, minilm-l6, 24 tokens, 64 texts a request"


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(output=tmp_path, work=tmp_path, provider="cpu", tiny=True)


@pytest.fixture
def report(options: Options) -> Report:
    return open_report(options, (), "onnxruntime 1")


def test_all_sections_together_take_less_than_a_quarter_of_an_hour() -> None:
    assert sum(BUDGETS.values()) < 13 * 60
    assert BUDGETS["check"] <= 90


def test_every_form_that_is_checked_can_be_built_of_bert(options: Options) -> None:
    for candidate in CHECKED[LARGE]:
        write_family(options, LARGE, candidate.form, options.work / "graph.onnx")


def test_the_aims_come_first_after_the_answers() -> None:
    first = [figure.name for figure in FIGURES if figure.section != "check"]

    assert sections_in_order(())[:3] == ["check", "gateway-small", "gateway-large"]
    assert set(sections_in_order(())) == set(SECTIONS)
    assert first[0] == THROUGH
    assert first[1].endswith("1 text a request")
    assert first[2].startswith("through the gateway, bert-base, 128 tokens")


def test_figures_that_no_record_has_are_measured_first() -> None:
    known = {figure.name for figure in FIGURES if figure.section != "tensorrt"} - {THROUGH}

    order = sections_in_order(known)

    assert order[:4] == ["check", "gateway-small", "tensorrt", "gateway-large"]
    assert figures_of("gateway-small", {THROUGH})[0].name != THROUGH


def test_records_of_other_cards_do_not_count(options: Options, report: Report) -> None:
    records = options.work / "records"
    for name, what in (("H100", "first"), ("A100", "second")):
        found = msgspec.structs.replace(
            report, device=Device(name=name), figures=[Measurement(what=what, rate=1.0)]
        )
        folder = msgspec.structs.replace(options, output=records)
        records.mkdir(exist_ok=True)
        write_report(folder, found)
        (records / "gpu.json").rename(records / f"2026-12-01-gpu-{name}.json")

    h100 = msgspec.structs.replace(report, device=Device(name="H100"))

    assert known_figures(h100, records) == ["first"]


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


def test_texts_are_distinct_and_of_exactly_so_many_tokens(options: Options) -> None:
    path = options.work / "tokenizer.json"
    write_tokenizer(path, options.shape(LARGE).vocab)
    tokenizer = Tokenizer.from_file(str(path))

    known = list(islice(texts(options, length=16, seed=3), 3000))

    assert len(set(known)) == 3000
    assert {len(encoding.ids) for encoding in tokenizer.encode_batch(known)} == {16}
    assert tokenizer.token_to_id("[UNK]") not in tokenizer.encode(known[0]).ids


def test_a_missing_package_skips_its_section_by_name(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)

    result = run_section("pytorch", options)

    assert result.status == "skipped"
    assert "`torch`" in result.reason


def test_the_fastest_form_whose_answers_were_right_is_found(report: Report) -> None:
    batch = "session, bert-base, 256x128"
    figures = [
        Measurement(what=f"{batch}, fp16-fused", rate=100.0),
        Measurement(what=f"{batch}, fp16-ranges-k2", rate=300.0),
        Measurement(what=f"{batch}, fp16-packed", rate=900.0, passed=False),
    ]

    found = fastest(msgspec.structs.replace(report, figures=figures), batch)

    assert found is not None
    assert (found.form.attention, found.kernels) == ("ranges", 2)
    assert fastest(report, batch) is None


def test_ratios_name_what_they_divide(report: Report) -> None:
    batch = "bert-base, fp16, 256x128"
    figures = [
        Measurement(what="session, bert-base, 256x128, fp16-packed", rate=20_000.0),
        Measurement(what="session, bert-base, 1024x128, fastest", rate=90_000.0),
        Measurement(what="matrix rate, operations/s", rate=8e14),
        Measurement(what=f"PyTorch alone, {batch}", rate=10_000.0),
        Measurement(what=f"TensorRT alone, {batch}", rate=30_000.0, passed=False),
        Measurement(
            what="through the gateway, bert-base, 128 tokens, 64 texts a request", rate=15_000.0
        ),
    ]

    lines = ratios(msgspec.structs.replace(report, figures=figures))

    assert lines == [
        "bert-base through the gateway / bare session: 0.75",
        "bert-base through the gateway / PyTorch alone: 1.50",
        "bert-base through the gateway / arithmetic limit: 0.42",
    ]


def test_a_process_that_dies_loses_the_figure_it_was_at_and_no_other(
    options: Options, report: Report
) -> None:
    """The next process finds what is known, and what not to try again; a later run tries it."""
    assert not report.figures
    first, second = (figure.name for figure in figures_of("peer", ()))

    def work(figure: Figure) -> Measurement:
        if figure.name == second:
            raise SystemExit
        return Measurement(what=figure.name, rate=1.0)

    with pytest.raises(SystemExit):
        Journal(options).measure("peer", work)

    successor = Journal(options)
    assert successor.missing("peer") == []
    assert [each.passed for each in successor.report.figures] == [True, False]
    assert [each.what for each in open_report(options, (), "").figures] == [first]
    assert open_report(options, ("peer",), "").figures == []


def test_an_error_spoils_one_figure(options: Options, report: Report) -> None:
    assert not report.figures

    def work(figure: Figure) -> Measurement:
        raise ValueError(f"/tmp/folder/{figure.items}.onnx is broken\nand more")

    Journal(options).measure("peer", work)

    notes = [each.note for each in Journal(options).report.figures]
    assert notes == ["ValueError: 32.onnx is broken", "ValueError: 256.onnx is broken"]


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
    figure = next(each for each in FIGURES if each.name == THROUGH)
    answers = [LoadResult(requests=10, duration=2.0, statuses=statuses, latencies=[0.1])]
    state = ServingState(
        backend_id="b",
        region="eu",
        ready=True,
        missing=[],
        provider=provider,
        models=[],
        report=Load(),
    )

    found = summary(on_a_gpu, figure, answers, [state])

    assert found.passed == (not problem)
    assert problem in found.note
    assert found.rate == statuses[200] / 2.0 * 64
