"""Results of simulated seeds are kept, for each version of the simulated code."""

from pathlib import Path

import msgspec

from loadtests.simulated_pieces import Piece, gaps, joined, read_pieces, record, report


def piece(first: int, last: int, *, code: str = "new", findings: str = "") -> Piece:
    return Piece(
        code=code,
        first=first,
        last=last,
        failed={first: [findings]} if findings else {},
        seconds=3600.0,
        virtual_seconds=7.0,
        processor_seconds=0.5 * (last - first + 1),
        statuses={"200": 3},
        faults={"kill": 1},
    )


def test_pieces_of_other_code_do_not_count(tmp_path: Path) -> None:
    kept = tmp_path / "pieces.jsonl"
    kept.write_bytes(msgspec.json.encode(piece(0, 99, code="old")) + b"\n")

    assert read_pieces(kept, tmp_path / "none", code="new") == []
    assert read_pieces(kept, code="old") == [piece(0, 99, code="old")]


def test_recorded_pieces_are_joined_and_those_of_other_code_stay(tmp_path: Path) -> None:
    file = tmp_path / "record.jsonl"
    record([piece(0, 99, code="old")], file)
    record([piece(0, 99), piece(100, 199, findings="lost"), piece(500, 599)], file)

    first, second = read_pieces(file, code="new")

    assert (first.first, first.last, first.statuses) == (0, 199, {"200": 6})
    assert first.failed == {100: ["lost"]}
    assert (second.first, second.last) == (500, 599)
    assert read_pieces(file, code="old") == [piece(0, 99, code="old")]


def test_a_piece_that_is_recorded_and_kept_counts_once(tmp_path: Path) -> None:
    file, kept = tmp_path / "record.jsonl", tmp_path / "pieces.jsonl"
    record([piece(0, 99), piece(100, 199)], file)
    kept.write_bytes(msgspec.json.encode(piece(100, 199)) + b"\n")

    done = read_pieces(file, kept, code="new")
    record(done, file)

    assert [(each.first, each.last) for each in read_pieces(file, code="new")] == [(0, 199)]
    assert report(done)[0] == "200 seeds, 0 with findings, 100 seeds an hour"


def test_only_seeds_without_a_result_are_run() -> None:
    done = joined([piece(0, 99), piece(100, 199), piece(250, 299)])

    assert list(gaps(range(50, 400), done)) == [range(200, 250), range(300, 400)]
    assert list(gaps(range(50, 200), done)) == []
    assert list(gaps(range(10), [])) == [range(10)]


def test_a_piece_that_overlaps_one_of_an_earlier_file_does_not_count(tmp_path: Path) -> None:
    file, kept = tmp_path / "record.jsonl", tmp_path / "pieces.jsonl"
    record([piece(200, 3599, findings="lost")], file)
    kept.write_bytes(msgspec.json.encode(piece(0, 399)) + b"\n")

    record(read_pieces(file, kept, code="new"), file)

    assert read_pieces(file, code="new") == [piece(200, 3599, findings="lost")]
