"""Places of answers are found in runs of sorted numbers, also after a crash."""

from pathlib import Path

from sluicegate.bulk.result_index import Place, ResultIndex

_SIZE = 1 << 20


def key(number: int) -> bytes:
    # Runs sort by the last bytes, which are in no order.
    return b"address-%09d-" % number + (number * 0x9E3779B97F4A7C15 % 2**64).to_bytes(8, "little")


def places(numbers: range) -> dict[bytes, Place]:
    return {key(number): (number * 10, number % 7 + 1) for number in numbers}


def filled(folder: Path, *, runs: int, most_merged: int = 1 << 20) -> ResultIndex:
    index = ResultIndex(folder, size=_SIZE, most_merged=most_merged)
    for number in range(runs):
        index.add(places(range(number * 100, number * 100 + 100)), (number + 1) * 1000)
    return index


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_places_are_found_in_merged_runs_and_after_a_restart(tmp_path: Path) -> None:
    index = filled(tmp_path, runs=7)
    wanted = list(map(key, range(-5, 720)))

    found = dict(index.find(wanted))
    after = dict(ResultIndex(tmp_path, size=_SIZE).find(wanted))

    assert found == places(range(700))
    assert after == found
    # Of 400, 200 and 100 answers: each run is at least twice as long as the next.
    assert len(names(tmp_path)) == 3


def test_runs_are_merged_up_to_a_bound(tmp_path: Path) -> None:
    """Memory for a merge does not grow with the job."""
    index = filled(tmp_path, runs=8, most_merged=200)

    assert len(names(tmp_path)) == 4
    assert dict(index.find(list(map(key, range(800))))) == places(range(800))


def test_a_run_that_is_incomplete_and_those_after_it_are_dropped(tmp_path: Path) -> None:
    filled(tmp_path, runs=7)
    second = tmp_path / names(tmp_path)[1]
    second.write_bytes(second.read_bytes()[:-3])

    index = ResultIndex(tmp_path, size=_SIZE)

    assert index.until == 4000
    assert dict(index.find(list(map(key, range(700))))) == places(range(400))
    assert len(names(tmp_path)) == 1


def test_runs_beyond_the_end_of_the_answers_are_dropped(tmp_path: Path) -> None:
    filled(tmp_path, runs=3)

    index = ResultIndex(tmp_path, size=2500)

    assert index.until == 2000
    assert dict(index.find(list(map(key, range(300))))) == places(range(200))


def test_runs_that_a_merge_left_behind_are_removed(tmp_path: Path) -> None:
    filled(tmp_path, runs=1)
    (first,) = tmp_path.iterdir()
    content = first.read_bytes()
    index = filled(tmp_path, runs=0)
    index.add(places(range(100, 200)), 2000)
    first.write_bytes(content)

    again = ResultIndex(tmp_path, size=_SIZE)

    assert dict(again.find(list(map(key, range(200))))) == places(range(200))
    assert not first.exists()


def test_keys_of_one_number_are_all_found(tmp_path: Path) -> None:
    """The file of answers says which of them an answer is of."""
    index = ResultIndex(tmp_path, size=_SIZE)
    one, other = b"one-" + bytes(8), b"two-" + bytes(8)
    index.add({one: (5, 2), other: (9, 3)}, 100)

    assert list(index.find([one])) == [(one, (5, 2)), (one, (9, 3))]


def test_runs_take_no_memory_of_the_process(tmp_path: Path) -> None:
    """They are mapped from their files: memory does not grow with the job."""
    index = filled(tmp_path, runs=7)

    columns = [column for run in index._runs for column in run.columns]

    assert len(columns) == 9
    assert not any(column.flags.owndata for column in columns)
