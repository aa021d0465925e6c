"""The harness runs a model owner's algorithm as a backend does: in a process of its own."""

from pathlib import Path

import pytest

from sluicegate.backends.algorithms.harness import answer
from sluicegate.backends.errors import AlgorithmFailed, ItemRefused


def write_code(folder: Path, body: str) -> Path:
    path = folder / "own.py"
    path.write_text(f"import os\nasync def run(item, ask):\n    {body}\n")
    return path


def test_it_kills_what_hangs(tmp_path: Path) -> None:
    code = write_code(tmp_path, "import threading; threading.Event().wait()")

    with pytest.raises(ItemRefused, match="held by one step"):
        answer(code, "a", models={}, time=0.2)


def test_it_names_the_line_of_an_error(tmp_path: Path) -> None:
    code = write_code(tmp_path, "return 1 / 0")

    with pytest.raises(AlgorithmFailed, match=r"`ZeroDivisionError` in own\.py, line 3"):
        answer(code, "a", models={})


def test_the_code_sees_no_setting_of_the_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICEGATE_BACKEND_TOKEN", "confidential")
    code = write_code(tmp_path, "return str(dict(os.environ))")

    assert "confidential" not in answer(code, "a", models={})
