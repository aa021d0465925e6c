"""Variants of graphs whose weights are in a file of their own are made through the same gate."""

from pathlib import Path

import pytest

from sluicegate.backends.model_tools.graphs import weight_file
from tests.parity.library_fixtures import unpack
from tests.parity.texts import read_texts
from tests.support.imports import run_import

# A graph of toy size is no faster in eight bits, and its random vectors move easily.
LOOSE = ("--max-flips", "100", "--max-loss", "100", "--min-cosine", "-1", "--min-speedup", "0")


def test_int8_of_a_large_graph_has_its_weights_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_file, "MOST_INSIDE", 0)
    models, texts = tmp_path / "models", read_texts()[:120]
    models.mkdir()
    files = []
    for name, some in (("--calibrate", texts[:60]), ("--judge", texts[60:])):
        path = tmp_path / f"{name}.txt"
        path.write_text("\n".join(some), encoding="utf-8")
        files += [name, str(path)]
    folder = unpack("qwen3-04", tmp_path)

    given = ("--name", "m", *files, "--precision", "int8", *LOOSE)
    result = run_import(folder, models, *given)

    assert result.exit_code == 0, result.output
    assert (models / "m" / "1" / weight_file.NAME).is_file()
    assert not (models / "m" / "2" / weight_file.NAME).exists()
    assert "cosine to fp32" in result.output
