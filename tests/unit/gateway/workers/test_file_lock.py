"""One holder at a time, and the next once it is gone."""

from pathlib import Path

from sluicegate.gateway.workers.file_lock import FileLock


def test_a_lock_has_one_holder(tmp_path: Path) -> None:
    path = tmp_path / "data" / "lock"

    with FileLock(path) as one, FileLock(path) as other:
        assert one.take()
        assert one.take()
        assert not other.take()


def test_a_lock_is_free_when_its_holder_has_gone(tmp_path: Path) -> None:
    with FileLock(tmp_path / "lock") as one:
        one.take()

    with FileLock(tmp_path / "lock") as other:
        assert other.take()
    assert not other.held
