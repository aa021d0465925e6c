"""The GPU report: sections keep to their time, wrong answers never pass, ratios are as stated."""

from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from backends.executors.buckets import Shape
from loadtests.gpu.command import run_section
from loadtests.gpu.models import random_batch, texts, write_tokenizer
from loadtests.gpu.plan import (
    BUDGETS,
    CANDIDATES,
    MAIN,
    Journal,
    Measurement,
    Options,
    SectionResult,
    best_candidate,
    pack,
    unpack,
    write_result,
)
from loadtests.gpu.sessions import compare
from loadtests.gpu.table import ratios
from loadtests.gpu.torch_side import operations


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(output=tmp_path, work=tmp_path, provider="cpu", tiny=True)


def test_all_sections_together_take_less_than_nine_minutes() -> None:
    assert sum(BUDGETS.values()) < 9 * 60


def test_options_reach_the_process_of_a_section(options: Options) -> None:
    assert unpack(pack(options)) == options


def test_every_candidate_can_be_built_and_has_a_name_of_its_own() -> None:
    assert all(candidate.form.problem() is None for candidate in CANDIDATES)
    assert max(Counter(candidate.name for candidate in CANDIDATES).values()) == 1


def test_an_answer_that_is_not_a_number_is_infinitely_wrong() -> None:
    expected = np.ones((2, 3), dtype=np.float32)
    broken = expected.copy()
    broken[1, 2] = np.nan

    assert compare(broken, expected) == float("inf")
    assert compare(expected * np.float32(1.01), expected) == pytest.approx(0.01, rel=1e-3)


def test_one_wrong_row_among_right_ones_shows() -> None:
    expected = np.ones((100, 4), dtype=np.float32)
    wrong = expected.copy()
    wrong[57] = 0

    assert compare(wrong, expected) == pytest.approx(1.0)


def test_texts_are_distinct_and_of_exactly_so_many_tokens(options: Options) -> None:
    path = options.work / "tokenizer.json"
    write_tokenizer(path, options.shape(MAIN).vocab)
    tokenizer = Tokenizer.from_file(str(path))

    known = list(islice(texts(options, length=16, seed=3), 3000))

    assert len(set(known)) == 3000
    assert {len(encoding.ids) for encoding in tokenizer.encode_batch(known)} == {16}
    assert tokenizer.token_to_id("[UNK]") not in tokenizer.encode(known[0]).ids


def test_texts_of_different_clients_differ(options: Options) -> None:
    first, second = (set(islice(texts(options, length=16, seed=s), 2000)) for s in (3, 4))

    assert not first & second


def test_mixed_batches_are_right_padded_and_have_a_row_of_full_length(options: Options) -> None:
    batch = random_batch(options, Shape(64, 32), seed=1, mixed=True)

    mask = batch["attention_mask"]
    assert mask.sum(axis=1).max() == 32
    assert mask.sum(axis=1).min() >= 4
    assert (np.diff(mask, axis=1) <= 0).all()
    assert not batch["input_ids"][mask == 0].any()


def test_a_missing_package_skips_its_section_by_name(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)

    result = run_section("floor", options)

    assert result.status == "skipped"
    assert "`torch`" in result.reason


def test_later_sections_run_what_the_ceiling_found_best(options: Options) -> None:
    fallback = best_candidate(options).name
    lines = [
        Measurement(what=f"{MAIN} fp16-fused", rate=100.0),
        Measurement(what=f"{MAIN} fp16-ranges-k2", rate=300.0),
        Measurement(what=f"{MAIN} fp16-packed", rate=900.0, passed=False),
    ]
    write_result(options, SectionResult(section="ceiling", status="out of time", lines=lines))

    found = best_candidate(options)

    assert fallback == "fp32-fused"
    assert (found.form.attention, found.kernels) == ("ranges", 2)


def test_a_sequence_of_bert_base_is_22_billion_operations() -> None:
    real = Options(output=Path(), work=Path())

    assert operations(real) == pytest.approx(22.3e9, rel=0.02)


def test_ratios_name_what_they_divide() -> None:
    results = [
        SectionResult(
            section="ceiling",
            status="done",
            best="fp16-packed",
            lines=[
                Measurement(what=f"{MAIN} fp16-packed", rate=20_000.0),
                Measurement(what=f"{MAIN} fp16-packed 1024x32", rate=90_000.0),
                Measurement(what=f"{MAIN} fp16-packed, mixed lengths", rate=50_000.0),
                Measurement(what="minilm-l6 fp16-packed 8x128", rate=90_000.0),
            ],
        ),
        SectionResult(
            section="floor",
            status="done",
            lines=[
                Measurement(what="matrix rate, bfloat16, operations/s", rate=8e14),
                Measurement(what="operations of one bert-base sequence", rate=2e10),
            ],
        ),
        SectionResult(
            section="http",
            status="done",
            lines=[Measurement(what="whole path over HTTP, 1 text a request", rate=15_000.0)],
        ),
        SectionResult(
            section="peer",
            status="done",
            lines=[Measurement(what="transformers pipeline, batches of 32", rate=1_500.0)],
        ),
    ]

    lines = ratios(results)

    assert "whole path: 900,000 requests a minute" in lines
    assert "whole path / bare session: 0.75" in lines
    assert "whole path / transformers pipeline: 10.00" in lines
    assert "bare session / arithmetic limit: 0.500" in lines


def test_a_process_that_dies_loses_the_figure_it_was_at_and_no_other(options: Options) -> None:
    """The next process finds both: what is known, and what not to try again."""
    journal = Journal(options, "check")
    journal.begin("first")
    journal.end(Measurement(what="first", error=0.001))
    journal.begin("second")

    successor = Journal(options, "check")

    assert successor.has("first")
    assert successor.has("second")
    assert not successor.has("third")
    assert [line.passed for line in successor.lines] == [True, False]
