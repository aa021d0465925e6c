"""Tests that the digests of files are remembered, and computed again after each change."""

import os
from pathlib import Path

import pytest

from sluicegate.backends.repository.file_digests import digest_files

RECORD = ".digests.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a file that was last changed so long ago that its digest is remembered."""
    content = tmp_path / "model.weights"
    content.write_bytes(b"old")
    return tmp_path


def settle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time_ns", lambda: 2**62)


def test_unchanged_files_are_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settle(monkeypatch)
    first, record = digest_files(folder), folder / RECORD
    written = record.stat().st_mtime_ns

    assert digest_files(folder) == first
    assert record.stat().st_mtime_ns == written


def test_a_change_that_keeps_size_and_time_is_seen(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(monkeypatch)
    first, weights = digest_files(folder), folder / "model.weights"
    seen, newer = weights.stat(), folder / ".newer"
    newer.write_bytes(b"new")
    os.utime(newer, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    newer.replace(weights)

    assert digest_files(folder) != first


def test_another_name_of_a_linked_file_does_not_change_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(monkeypatch)
    weights, record = folder / "model.weights", folder / RECORD
    weights.with_name(".second").hardlink_to(weights)
    first, written = digest_files(folder), record.stat().st_mtime_ns

    weights.with_name(".third").hardlink_to(weights)

    assert digest_files(folder) == first
    assert record.stat().st_mtime_ns == written


def test_a_file_that_has_just_changed_is_read_again(folder: Path) -> None:
    digest_files(folder)

    assert not (folder / RECORD).exists()


def test_a_file_that_changes_while_it_is_read_is_read_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = (folder / "model.weights").stat().st_ctime_ns
    clock = iter([changed + 1, changed + 10**12])
    monkeypatch.setattr("time.time_ns", lambda: next(clock))

    digest_files(folder)

    assert not (folder / RECORD).exists()


@pytest.mark.parametrize("content", [b"", b"[1]", b'{"weights": [[0, 0, 0, 0], "AAAA"]}'])
def test_a_useless_record_is_replaced(
    folder: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    first = digest_files(folder)
    (folder / RECORD).write_bytes(content)
    settle(monkeypatch)

    assert digest_files(folder) == first
    assert (folder / RECORD).read_bytes() != content
