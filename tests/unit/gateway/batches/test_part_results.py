"""The results of a part are on disk until its last line is answered, and then in order."""

import tracemalloc
from contextlib import closing
from pathlib import Path

import pytest

from sluicegate.gateway.batches.answering import Result
from sluicegate.gateway.batches.part_results import PartResults
from sluicegate.gateway.errors import DependencyUnavailable

NUMBERS = range(1, 41)
LARGE = 2 << 20


def test_results_are_read_in_the_order_of_their_lines(tmp_path: Path) -> None:
    with closing(PartResults(tmp_path)) as results:
        for number in reversed(NUMBERS[:4]):
            result = Result(line=b"%d\n" % number, is_success=number % 2 == 0)
            results.add(number, result)

        assert results.counts() == (4, 2, 0)
        assert b"".join(results.content(NUMBERS, is_success=True)) == b"2\n4\n"
        assert b"".join(results.content(NUMBERS, is_success=False)) == b"1\n3\n"


def test_results_take_no_memory(tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        with closing(PartResults(tmp_path)) as results:
            for number in NUMBERS:
                results.add(number, Result(line=b"x" * LARGE, is_success=True))
            size = sum(map(len, results.content(NUMBERS, is_success=True)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert size == LARGE * len(NUMBERS)
    assert peak < 4 * LARGE


def test_a_folder_that_cannot_be_used_is_waited_for(tmp_path: Path) -> None:
    with pytest.raises(DependencyUnavailable):
        PartResults(tmp_path / "missing")
