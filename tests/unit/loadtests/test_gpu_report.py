"""Tests the GPU report: time budgets, wrong answers, ratios."""

from itertools import islice
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tokenizers import Tokenizer

from backends.protocol import Report as Load, ServingState
from loadtests.generator import Outcome
from loadtests.gpu.command import run_section
from loadtests.gpu.full_path import summary
from loadtests.gpu.models import graph, short, texts, write_tokenizer
from loadtests.gpu.plan import FIGURES, LARGE, SECTIONS, SMALL, Figure, Options, through_gateway
from loadtests.gpu.results import Journal, Measurement, Report, ratios
from loadtests.gpu.sessions import distance


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(output=tmp_path, work=tmp_path, provider="cpu", tiny=True)


@pytest.fixture
def report(options: Options) -> Report:
    return Journal.begin(options, "onnxruntime 1").report


def test_all_sections_together_take_less_than_a_quarter_of_an_hour() -> None:
    assert sum(section.seconds for section in SECTIONS.values()) < 13 * 60


def test_every_form_that_is_checked_can_be_built_of_bert(options: Options) -> None:
    for figure in FIGURES:
        if figure.candidate is not None and (figure.section, figure.model) == ("check", LARGE):
            graph(options, LARGE, figure.candidate.form, short(options, LARGE))


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

    known = list(islice(texts(options.shape(LARGE).vocab, length=16, seed=3), 3000))

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
    assert report.fastest(LARGE) is None

    report.figures |= {
        f"{batch}, fp16-fused": Measurement(rate=100.0),
        f"{batch}, fp16-ranges-k2": Measurement(rate=300.0),
        f"{batch}, fp16-packed": Measurement(rate=900.0, passed=False),
    }

    found = report.fastest(LARGE)
    assert found is not None
    assert (found.form.attention, found.kernels) == ("ranges", 2)


def test_ratios_name_what_they_divide(report: Report) -> None:
    batch = "bert-base, fp16, 256x128"
    report.figures |= {
        "session, bert-base, 256x128, fp16-packed": Measurement(rate=20_000.0),
        "session, bert-base, 1024x128, fastest": Measurement(rate=90_000.0),
        "matrix rate, operations/s": Measurement(rate=8e14),
        f"PyTorch alone, {batch}": Measurement(rate=10_000.0),
        f"TensorRT alone, {batch}": Measurement(rate=30_000.0, passed=False),
        through_gateway(LARGE, 64): Measurement(rate=15_000.0),
    }

    assert ratios(report) == [
        "bert-base through the gateway / bare session: 0.75",
        "bert-base through the gateway / PyTorch alone: 1.50",
        "bert-base through the gateway / arithmetic limit: 0.42",
    ]


def test_a_process_that_dies_loses_the_figure_it_was_at_and_no_other(options: Options) -> None:
    """The next process finds what is known, and what not to try again; a later run tries it."""
    journal = Journal.begin(options, "")
    first, second = (figure.name for figure in journal.missing("peer"))

    def work(figure: Figure) -> Measurement:
        if figure.name == second:
            raise SystemExit
        return Measurement(rate=1.0)

    with pytest.raises(SystemExit):
        journal.measure("peer", work)

    successor = Journal(options.output)
    assert successor.missing("peer") == []
    assert [each.passed for each in successor.report.figures.values()] == [True, False]
    assert [*Journal.begin(options, "").report.figures] == [first]
    assert not Journal.begin(options, "", again=["peer"]).report.figures


def test_an_error_spoils_one_figure(options: Options) -> None:
    def work(figure: Figure) -> Measurement:
        raise ValueError(f"/tmp/folder/{figure.items}.onnx is broken\nand more")

    Journal.begin(options, "").measure("peer", work)

    notes = [each.note for each in Journal(options.output).report.figures.values()]
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
    figure = next(each for each in FIGURES if each.name == through_gateway(SMALL, 64))
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

    found = summary(on_a_gpu, figure, runs, [state])

    assert found.passed == (not problem)
    assert problem in found.note
    assert found.rate == statuses[200] / 2.0 * 64
