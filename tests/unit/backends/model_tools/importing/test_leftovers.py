"""The files of a checkpoint are listed, even if some of them vanish meanwhile."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluicegate.backends.model_tools.importing.leftovers import files_of


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()


def test_hidden_files_are_not_listed(tmp_path: Path) -> None:
    write(tmp_path, "config.json", ".git/config", "1_Pooling/config.json", "onnx/.hidden")

    assert files_of(tmp_path) == ["1_Pooling/config.json", "config.json"]


def test_a_folder_that_vanishes_is_not_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "config.json", "cache/file")
    scan = os.scandir

    def scan_late(path: str) -> Iterator[os.DirEntry[str]]:
        if path == str(tmp_path / "cache"):
            (tmp_path / "cache" / "file").unlink()
            (tmp_path / "cache").rmdir()
        return scan(path)

    monkeypatch.setattr(os, "scandir", scan_late)

    assert files_of(tmp_path) == ["config.json"]
