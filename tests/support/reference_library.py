"""Installs a package that stands for a reference library."""

from pathlib import Path

import pytest


def install_library(folder: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a package that stands for transformers, for the process that asks the library."""
    folder.mkdir()
    pipeline = "def pipeline(task, model, **options):"
    (folder / "transformers.py").write_text(f"import os, signal\n\n{pipeline}\n    {body}\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))
