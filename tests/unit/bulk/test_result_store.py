"""Answers of a job outlive its process, all of those that were kept together or none."""

from pathlib import Path

import pytest

from sluicegate.bulk.result_store import ResultStore
from sluicegate.bulk.results import StoredResult
from sluicegate.bulk.usage import BulkUsage


def name(number: int) -> bytes:
    return number.to_bytes(24, "big")


def made(numbers: range) -> dict[bytes, StoredResult]:
    return {
        name(number): StoredResult(payload=b"%d" % number * 9, rows=1, tokens=number)
        for number in numbers
    }


def test_answers_are_found_in_memory_in_the_index_and_after_a_restart(tmp_path: Path) -> None:
    with ResultStore(tmp_path, most_recent=100) as store:
        for first in range(0, 250, 50):
            store.keep(made(range(first, first + 50)))
        before = store.find([name(3), name(249), name(999)])
    with ResultStore(tmp_path, most_recent=100) as store:
        after = store.find(map(name, range(250)))
        usage = store.usage()

    assert before == {each: made(range(250))[each] for each in (name(3), name(249))}
    assert after == made(range(250))
    assert usage == BulkUsage(computed=250, rows=250, tokens=sum(range(250)))


@pytest.mark.parametrize("lost", [1, 300, 1900, 9000])
def test_what_a_crash_left_incomplete_is_dropped_as_a_whole(tmp_path: Path, lost: int) -> None:
    with ResultStore(tmp_path, most_recent=100) as store:
        store.keep(made(range(150)))
        store.keep(made(range(150, 200)))
    file = tmp_path / "answers"
    file.write_bytes(file.read_bytes()[:-lost])

    with ResultStore(tmp_path, most_recent=100) as store:
        found = store.find(map(name, range(200)))
        store.keep({k: v for k, v in made(range(210)).items() if k not in found})
    with ResultStore(tmp_path, most_recent=100) as store:
        again = store.find(map(name, range(210)))

    assert found == made(range(150 if lost < 9000 else 0))
    assert again == made(range(210))


def test_bytes_that_the_power_took_are_no_answers(tmp_path: Path) -> None:
    with ResultStore(tmp_path) as store:
        store.keep(made(range(5)))
        store.keep(made(range(5, 9)))
    file = tmp_path / "answers"
    content = bytearray(file.read_bytes())
    content[-40:] = bytes(40)
    file.write_bytes(content)

    with ResultStore(tmp_path) as store:
        assert store.find(map(name, range(9))) == made(range(5))


def test_failures_and_answers_of_a_cache_are_counted_apart(tmp_path: Path) -> None:
    with ResultStore(tmp_path) as store:
        store.keep(
            {
                name(1): StoredResult(code="bad_item", detail="it is empty", rows=1),
                name(2): StoredResult(payload=b"1", is_shared=True, rows=3),
                name(3): StoredResult(payload=b"2", rows=2, tokens=7),
            }
        )

        assert store.usage() == BulkUsage(computed=1, hit=1, rows=2, tokens=7)


def test_keys_that_end_alike_have_their_own_answers(tmp_path: Path) -> None:
    """The index has only the end of a key."""
    one, two, three = (each + b"-" * 23 for each in (b"1", b"2", b"3"))
    with ResultStore(tmp_path, most_recent=2) as store:
        store.keep({one: StoredResult(payload=b"1"), two: StoredResult(payload=b"2")})

        assert store.find([two, one, three]) == {
            one: StoredResult(payload=b"1"),
            two: StoredResult(payload=b"2"),
        }
