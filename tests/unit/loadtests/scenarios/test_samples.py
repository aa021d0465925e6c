"""Tests the reading and counting of answers."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from loadtests.scenarios.samples import (
    Samples,
    least_rate,
    per_second,
    percentile,
    percentile_per_second,
)

LINES = [
    "began,1000000",
    "1000500,20.5,200,0,1,h,0",
    "1000100,900.0,200,1,0,m,0",
    "1001200,3.0,503,0,0,m,1",
    "1001300,3.0,503,0,0,m,0",
    "1001400,0.0,0,0,0,,0",
    "1001500,1500.0,200,0,0,s,0",
    "1001600,2.0,4",
]


def test_lines_are_answers_in_the_order_they_were_sent() -> None:
    samples = Samples.parse(LINES)

    assert samples.sent.tolist() == pytest.approx([0.1, 0.5, 1.2, 1.3, 1.4, 1.5])
    assert samples.status.tolist() == [200, 200, 503, 503, 0, 200]
    assert samples.good(1.0).tolist() == [True, True, False, False, False, False]
    assert samples.refused.tolist() == [False, False, True, False, False, False]
    assert samples.errors.tolist() == [False, False, False, True, True, False]
    assert samples.hits.tolist() == [False, True, False, False, False, True]


def test_a_refusal_without_a_time_to_retry_has_a_code_of_its_own() -> None:
    codes = {name: int(chosen.sum()) for name, chosen in Samples.parse(LINES).codes().items()}

    assert codes == {"200": 3, "503": 1, "503 without Retry-After": 1, "no answer": 1}


def test_no_line_is_no_answer() -> None:
    samples = Samples.parse([])

    assert len(samples) == 0
    assert samples.codes() == {}
    assert percentile(samples.latency, 0.99) == 0.0


def test_the_raw_answers_are_compressed_csv(tmp_path: Path) -> None:
    Samples.parse(LINES[:3]).write(tmp_path / "answers.csv.gz")

    lines = gzip.decompress((tmp_path / "answers.csv.gz").read_bytes()).decode().splitlines()
    assert lines == [
        "sent_s,latency_ms,status,template,tenant,cache,retry_after",
        "0.100,900.000,200,1,0,m,0",
        "0.500,20.500,200,0,1,h,0",
    ]


def test_the_last_part_of_a_second_is_not_counted() -> None:
    assert per_second(np.array([0.1, 0.9, 1.5, 2.2]), 2.5).tolist() == [2, 1]


def test_a_second_without_answers_has_no_percentile() -> None:
    lines = [*LINES[:3], "1002500,40.0,200,0,0,m,0"]

    found = percentile_per_second(Samples.parse(lines), 1.0, 3.0)

    assert found[[0, 2]].tolist() == pytest.approx([0.9, 0.04])
    assert np.isnan(found[1])


def test_the_least_rate_is_that_of_the_worst_window() -> None:
    times = np.array([*np.arange(0, 4, 0.1), *np.arange(6, 10, 0.1)])

    assert least_rate(times, 0.0, 4.0, 2.0) == pytest.approx(10.0, abs=0.5)
    assert least_rate(times, 0.0, 10.0, 2.0) == 0.0
