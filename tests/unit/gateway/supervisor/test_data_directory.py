"""The folder that one supervisor owns."""

import errno
import fcntl
import os
import stat
from pathlib import Path

import pytest

from sluicegate.gateway.supervisor.data_directory import choose_credentials, open_directory
from sluicegate.gateway.supervisor.errors import CannotStart, ExitCode


def silent(_: str) -> None:
    """Say nothing."""


def test_a_second_supervisor_is_refused(tmp_path: Path) -> None:
    with (
        open_directory(tmp_path / "d", silent),
        pytest.raises(CannotStart) as caught,
        open_directory(tmp_path / "d", silent),
    ):
        pytest.fail("it was opened twice")

    assert caught.value.exit_code == ExitCode.BUSY
    assert "`--data-dir`" in str(caught.value)


def test_it_can_be_opened_again_after_it_was_left(tmp_path: Path) -> None:
    for _ in range(2):
        with open_directory(tmp_path / "d", silent) as directory:
            assert directory.logs.is_dir()


def test_a_place_that_cannot_be_written_is_a_line_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with (
        pytest.raises(CannotStart, match="cannot be used"),
        open_directory(tmp_path / "file", silent),
    ):
        pytest.fail("it was opened")


def test_what_is_secret_is_for_its_owner_only(tmp_path: Path) -> None:
    with open_directory(tmp_path / "d", silent) as directory:
        secret = directory.secret("demo-key")

        assert directory.secret("demo-key") == secret
        assert stat.S_IMODE((directory.root / "demo-key").stat().st_mode) == 0o600
        assert stat.S_IMODE(directory.sockets().stat().st_mode) == 0o700
        assert stat.S_IMODE(directory.root.stat().st_mode) == 0o700


def test_sockets_move_where_the_path_is_too_long_for_them(tmp_path: Path) -> None:
    root = tmp_path / ("x" * 90)
    with open_directory(root, silent) as directory:
        sockets = directory.sockets()

        assert root not in sockets.parents
        assert stat.S_IMODE(sockets.stat().st_mode) == 0o700

    assert not sockets.exists()


def test_a_generated_key_stays_and_a_given_one_is_not_written(tmp_path: Path) -> None:
    given = "x" * 16
    with open_directory(tmp_path / "d", silent) as directory:
        first = choose_credentials(directory, admin_key=given, demo_key="")
        second = choose_credentials(directory, admin_key="", demo_key="")

        assert first.admin_key == given
        assert second.admin_key != given
        assert first.demo_key == second.demo_key
        assert given not in "".join(p.read_text() for p in directory.root.glob("*-key"))


@pytest.mark.parametrize("key", ["short", "x" * 201, "has a blank in it", "täst-key-0123456789"])
def test_a_key_that_cannot_be_one_is_refused_without_showing_it(tmp_path: Path, key: str) -> None:
    with (
        open_directory(tmp_path / "d", silent) as directory,
        pytest.raises(CannotStart) as caught,
    ):
        choose_credentials(directory, admin_key="", demo_key=key)

    assert caught.value.exit_code == ExitCode.CONFIGURATION
    assert key not in str(caught.value)


def test_only_metrics_of_processes_that_are_gone_are_removed(tmp_path: Path) -> None:
    """Somebody may keep a folder of that name where the data directory is put."""
    metrics = tmp_path / "metrics"
    metrics.mkdir()
    (metrics / "counter_17.db").touch()
    (metrics / ".lock").touch()  # whose age is that of the totals
    (metrics / "notebook.ipynb").write_text("mine")

    with open_directory(tmp_path, lambda _: None):
        left = [path.name for path in metrics.iterdir()]

    assert left == ["notebook.ipynb"]


def test_a_place_without_locks_is_a_line_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)

    with pytest.raises(CannotStart, match="No locks available"), open_directory(tmp_path, silent):
        pytest.fail("it was opened")
