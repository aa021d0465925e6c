"""Large weights are in a file of their own, which all graphs of the revision share."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime  # type: ignore[import-untyped]
import pytest

from sluicegate.backends.model_tools.graphs import weight_file
from sluicegate.backends.model_tools.importing.convert import convert
from tests.parity.library_fixtures import unpack


def run(graph: Path) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(graph), providers=["CPUExecutionProvider"])
    ids = np.array([[5, 6, 7, 8], [9, 10, 0, 0]], dtype=np.int32)
    (pooled,) = session.run(
        ["pooled"], {"input_ids": ids, "attention_mask": (ids > 0) * np.int32(1)}
    )
    return np.asarray(pooled)


def test_a_graph_with_its_weights_apart_has_the_same_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = unpack("qwen3-04", tmp_path)
    convert(folder, tmp_path / "whole")
    monkeypatch.setattr(weight_file, "MOST_INSIDE", 0)
    convert(folder, tmp_path / "apart")

    whole, apart = (tmp_path / name / "model.onnx" for name in ("whole", "apart"))
    sizes = [path.stat().st_size for path in (whole, apart)]

    assert sizes[1] < sizes[0] / 2
    assert (run(whole) == run(apart)).all()


def test_device_graphs_read_the_weights_of_the_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_file, "MOST_INSIDE", 0)
    convert(unpack("qwen3-04", tmp_path), tmp_path / "1")

    plain = onnx.load(str(tmp_path / "1" / "model.any-plain.onnx"), load_external_data=False)
    places = {each.value for t in plain.graph.initializer for each in t.external_data[:1]}

    assert places == {weight_file.NAME}
    assert run(tmp_path / "1" / "model.any-plain.onnx") == pytest.approx(
        run(tmp_path / "1" / "model.onnx"), abs=1e-5
    )


def test_a_disk_without_hard_links_gets_copies_of_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path, target: Path) -> None:
        raise PermissionError(target)

    weights = tmp_path / weight_file.NAME
    weights.write_bytes(b"weights")
    monkeypatch.setattr(Path, "hardlink_to", refuse)

    with weight_file.temporary_graph(b"graph", tmp_path / "model.onnx") as graph:
        copied = graph.with_name(weight_file.NAME).read_bytes()

    assert copied == b"weights"
