"""Tests that revisions share equal weights when they are published."""

from pathlib import Path

import pytest

from sluicegate.backends.repository.publishing import publish_revision

NAME = "model.weights"


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """The weights of a published revision."""
    return write(tmp_path / "one" / "1")


def write(folder: Path) -> Path:
    folder.mkdir(parents=True)
    path = folder / NAME
    path.write_bytes(b"weights")
    return path


def publish(root: Path) -> Path:
    write(root / ".staging" / "two")
    return publish_revision(root / ".staging" / "two", root / "two")


def test_equal_weights_become_one_file(tmp_path: Path, other: Path) -> None:
    revision = publish(tmp_path)

    assert other.samefile(revision / NAME)
    assert [path.name for path in revision.iterdir()] == [NAME]


def test_weights_that_no_other_revision_has_keep_one_name(tmp_path: Path) -> None:
    revision = publish(tmp_path)

    assert [path.name for path in revision.iterdir()] == [NAME]


@pytest.mark.parametrize("kind", ["private", "symbolic link"])
def test_files_of_another_kind_are_not_shared(tmp_path: Path, other: Path, kind: str) -> None:
    if kind == "private":
        other.chmod(0o600)
    else:
        other.symlink_to(other.rename(tmp_path / "apart"))

    revision = publish(tmp_path)

    assert not (revision / NAME).is_symlink()
    assert (revision / NAME).stat().st_nlink == 1
