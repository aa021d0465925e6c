"""Weights come from a safetensors file or a seed, and broken files are refused."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from loadtests.gpu.plan import PRESETS
from sluicegate.backends.model_tools.graphs.shapes import BertShape, weight_shapes
from sluicegate.backends.model_tools.graphs.weights import WeightsError, read_safetensors
from testing.bert import seeded_weights

SHAPE = BertShape(layers=1, hidden=8, heads=2, intermediate=16, vocab=10, positions=6)


def _safetensors() -> bytes:
    single = np.arange(6, dtype=np.float32)
    half = np.array([0.5, -2.0], dtype=np.float16)
    header = {
        "__metadata__": {"format": "pt"},
        "single": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "half": {"dtype": "F16", "shape": [2], "data_offsets": [24, 28]},
        "positions": {"dtype": "I64", "shape": [1], "data_offsets": [28, 36]},
    }
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + single.tobytes() + half.tobytes() + bytes(8)


def test_floating_tensors_of_a_file_are_read(tmp_path: Path) -> None:
    """float16 becomes float32, integers are left out."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(_safetensors())

    weights = read_safetensors(path)

    assert set(weights) == {"single", "half"}
    assert weights["single"].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert weights["half"].tolist() == [0.5, -2.0]
    assert weights["half"].dtype == np.float32


@pytest.mark.parametrize(
    "content", [b"", b"\x05", _safetensors()[:100], _safetensors()[:-14], b"not such a file at all"]
)
def test_a_broken_file_is_refused_by_its_path(tmp_path: Path, content: bytes) -> None:
    """Empty, cut in its header, cut in its tensors, or something else."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)

    with pytest.raises(WeightsError, match=str(path)):
        read_safetensors(path)


def _places(*places: list[int]) -> bytes:
    header = {
        str(number): {"dtype": "F32", "shape": [2], "data_offsets": place}
        for number, place in enumerate(places)
    }
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(16)


@pytest.mark.parametrize(
    "content",
    [
        _places([0, 8], [0, 8]),
        _places([0, 8], [4, 12]),
        _places([-8, 8]),
        _places([8, 0]),
        _places([0]),
        (200_000).to_bytes(8, "little") + b"[" * 200_000,
    ],
    ids=["the same", "overlapping", "negative", "backwards", "no end", "nested too deeply"],
)
def test_a_hostile_header_is_refused(tmp_path: Path, content: bytes) -> None:
    """Tensors that share bytes would make a small file need much memory."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)

    with pytest.raises(WeightsError, match="as safetensors"):
        read_safetensors(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """A path that is not there is an error of the same kind."""
    with pytest.raises(WeightsError, match=r"none\.safetensors"):
        read_safetensors(tmp_path / "none.safetensors")


def test_a_seed_decides_the_weights() -> None:
    """Equal seeds give equal weights, others give others, of every name and size."""
    first, again, other = (seeded_weights(SHAPE, seed=seed) for seed in (1, 1, 2))

    assert {name: tensor.shape for name, tensor in first.items()} == weight_shapes(SHAPE)
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not any(np.array_equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize(("preset", "parameters"), [("minilm-l6", 22.6e6), ("bert-base", 108.9e6)])
def test_presets_have_the_published_sizes(preset: str, parameters: float) -> None:
    """Counted without the pooler, which encoders do not use."""
    count = sum(math.prod(size) for size in weight_shapes(PRESETS[preset]).values())

    assert count == pytest.approx(parameters, rel=0.005)


@pytest.mark.parametrize(
    ("field", "value"), [("hidden_act", "relu"), ("position_embedding_type", "relative_key")]
)
def test_a_configuration_the_graph_cannot_compute_is_refused(field: str, value: str) -> None:
    """Another activation or kind of position would be silently wrong."""
    with pytest.raises(ValueError, match=field):
        BertShape.from_config({field: value})
