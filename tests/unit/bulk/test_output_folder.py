"""The folder that a bulk job writes to: in object storage, too, files are whole or not there."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sluicegate.bulk.errors import BulkStopped
from sluicegate.bulk.files import OutputFolder
from sluicegate.bulk.output import WorkFolder


@pytest.mark.parametrize("kind", ["s3", "local", "abfs"])
def test_an_upload_that_is_cut_leaves_no_part(tmp_path: Path, kind: str) -> None:
    fs = pytest.importorskip("pyarrow.fs")
    folder = OutputFolder(f"file://{tmp_path}/a%20folder")
    assert folder.location == f"{tmp_path}/a folder"
    system = _CutUpload(fs.LocalFileSystem(), kind)
    folder._remote = (system, str(tmp_path))
    (tmp_path / "part").write_bytes(bytes(3 << 20))

    with pytest.raises(KeyboardInterrupt):
        folder.take(tmp_path / "part", "part-00000-00000.jsonl")

    assert [file.name for file in tmp_path.iterdir()] == ["part"]
    assert not any("part-" in Path(name).name for name in system.opened)
    system.left = 9
    folder.take(tmp_path / "part", "part-00000-00000.jsonl")
    assert [file.name for file in tmp_path.iterdir()] == ["part-00000-00000.jsonl"]
    assert (tmp_path / "part-00000-00000.jsonl").stat().st_size == 3 << 20


@pytest.mark.parametrize("stage", ["work", "stage"])
def test_a_work_folder_that_cannot_be_removed_ends_no_complete_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    with WorkFolder(tmp_path / "work", tmp_path / stage) as work:
        rmdir = os.rmdir

        def as_nfs(*path: Any, **options: Any) -> None:
            if not work._lock.closed or path[0] == tmp_path / "work":
                raise OSError(errno.ENOTEMPTY, "Directory not empty")
            rmdir(*path, **options)

        monkeypatch.setattr(os, "rmdir", as_nfs)
        work.remove()

    assert [path.name for path in tmp_path.iterdir()] == ["work"]


def test_a_uri_of_a_file_names_no_host() -> None:
    assert OutputFolder("file://localhost/an/output").location == "/an/output"
    with pytest.raises(BulkStopped, match="host `an`"):
        OutputFolder("file://an/output")


def test_a_file_that_is_missing_need_not_be_removed(tmp_path: Path) -> None:
    fs = pytest.importorskip("pyarrow.fs")
    folder = OutputFolder(str(tmp_path))
    for folder._remote in (None, (fs.LocalFileSystem(), str(tmp_path))):
        (tmp_path / "file").touch()
        folder.remove("file")
        folder.remove("file")

    assert not any(tmp_path.iterdir())


class _CutUpload:
    """A file system of pyarrow whose uploads are interrupted after two blocks."""

    def __init__(self, system: Any, kind: str) -> None:
        self.system, self.type_name, self.left = system, kind, 2
        self.opened: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.system, name)

    def move(self, source: str, target: str) -> None:
        if self.type_name == "abfs":
            raise NotImplementedError
        self.system.move(source, target)

    @contextmanager
    def open_output_stream(self, path: str) -> Iterator["_CutUpload"]:
        self.opened.append(path)
        with self.system.open_output_stream(path) as self.stream:
            yield self

    def write(self, block: bytes) -> None:
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        self.stream.write(block)
