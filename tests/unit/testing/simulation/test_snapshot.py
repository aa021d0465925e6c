"""Tests that forked processes find the files of a folder as they were."""

import fcntl
import mmap
import os
import posix
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from testing.simulation.snapshot import Snapshot

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


def _in_child(work: Callable[[], object]) -> None:
    """Call `work` in a forked process, which must end well.

    `snapshot.fork` is for processes with one thread: earlier tests may have left others. If one of
    them waits for the interpreter at the fork, the child would wait for it for ever.
    """
    pid = os.fork()
    if not pid:
        try:
            work()
            posix._exit(0)
        finally:
            posix._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "files"
    made.mkdir()
    return made


def test_files_and_folders_are_as_before(folder: Path, tmp_path: Path) -> None:
    (folder / "kept").write_text("before")
    (folder / "deep").mkdir()
    (folder / "deep" / "gone").write_text("also")
    inode = (folder / "kept").stat().st_ino
    snapshot = Snapshot(folder, tmp_path / "links")

    def work() -> None:
        (folder / "kept").unlink()
        (folder / "kept").write_text("another file")
        (folder / "deep" / "gone").rename(folder / "new")
        (folder / "deep").rmdir()
        (folder / "fresh").mkdir()

    _in_child(work)
    snapshot.restore()

    assert sorted(path.name for path in folder.rglob("*")) == ["deep", "gone", "kept"]
    assert (folder / "kept").read_text() == "before"
    assert (folder / "deep" / "gone").read_text() == "also"
    assert (folder / "kept").stat().st_ino == inode


def test_offsets_and_maps_are_as_before(folder: Path, tmp_path: Path) -> None:
    path = folder / "log"
    path.write_bytes(bytes(1 << 20))
    with path.open("r+b", buffering=0) as file:
        file.write(b"abc")
        mapped = mmap.mmap(file.fileno(), 0)
        snapshot = Snapshot(folder, tmp_path / "links")

        def work() -> None:
            snapshot.open_again()
            file.write(b"def")
            mapped[100_000:100_003] = b"ghi"
            assert path.read_bytes()[:6] == b"abcdef"

        _in_child(work)
        snapshot.restore()

        assert file.tell() == 3
        assert path.read_bytes() == b"abc".ljust(1 << 20, b"\0") == mapped[:]


def test_a_child_has_the_locks_until_it_closes_the_file(folder: Path, tmp_path: Path) -> None:
    path = folder / "lock"
    path.touch()
    with path.open("r+b") as file, path.open("rb") as other:
        fcntl.flock(file, fcntl.LOCK_EX)
        snapshot = Snapshot(folder, tmp_path / "links")

        def work() -> None:
            snapshot.open_again()
            with pytest.raises(BlockingIOError):
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.close()
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)

        _in_child(work)
        _in_child(work)


def test_each_child_writes_to_the_same_open_database(folder: Path, tmp_path: Path) -> None:
    """Also through a connection of its own, and while the parent is in a transaction."""
    with closing(sqlite3.connect(folder / "ledger.db", isolation_level=None)) as opened:
        opened.execute("PRAGMA journal_mode=WAL")
        opened.execute("CREATE TABLE events (id INTEGER)")
        opened.execute("BEGIN IMMEDIATE")
        opened.execute("INSERT INTO events VALUES (1)")
        snapshot = Snapshot(folder, tmp_path / "links")

        def work() -> None:
            opened.execute("COMMIT")
            with closing(sqlite3.connect(folder / "ledger.db", isolation_level=None)) as own:
                own.execute("INSERT INTO events VALUES (2)")
                assert own.execute("SELECT id FROM events").fetchall() == [(1,), (2,)]
                assert own.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
                assert own.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            assert opened.execute("SELECT count(*) FROM events").fetchone() == (2,)
            opened.close()

        for _ in range(3):
            _in_child(work)
            snapshot.restore()

        assert opened.execute("SELECT id FROM events").fetchall() == [(1,)]
        opened.execute("ROLLBACK")
        assert opened.execute("PRAGMA integrity_check").fetchone() == ("ok",)
