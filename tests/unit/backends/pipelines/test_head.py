"""Heads: their files and their arithmetic."""

import io
from pathlib import Path

import numpy as np
import pytest

from sluicegate.backends.errors import ModelFailed, ModelProblem
from sluicegate.backends.pipelines.head import HeadWeights, read_head


def write(path: Path, **arrays: object) -> Path:
    np.savez(path, **{name: np.asarray(a, dtype=np.float16) for name, a in arrays.items()})  # type: ignore[arg-type]
    return path


def test_a_head_of_two_layers_is_two_products_with_an_activation_between(tmp_path: Path) -> None:
    path = write(tmp_path / "head.npz", w0=[[1, -1], [0, 2]], b0=[0, -1], w1=[[1], [10]], b1=[0.5])
    layers = read_head(path, inputs=2, outputs=1)
    head = HeadWeights(layers, activation="relu", normalize_input=False)

    logits = head.apply(np.array([[1.0, 3.0], [-2.0, 0.0]], dtype=np.float32))

    assert logits.tolist() == [[41.5], [10.5]]
    assert logits.dtype == np.float32


def test_a_head_may_want_unit_vectors(tmp_path: Path) -> None:
    path = write(tmp_path / "head.npz", w0=[[5], [0]], b0=[0])
    layers = read_head(path, inputs=2, outputs=1)
    head = HeadWeights(layers, activation="relu", normalize_input=True)

    logits = head.apply(np.array([[30.0, 40.0]], dtype=np.float32))

    assert logits.tolist() == [[pytest.approx(3.0)]]


def test_logits_that_overflow_are_a_failure_of_the_model() -> None:
    layers = [(np.full((2, 1), 3e38, np.float32), np.zeros(1, np.float32))]
    head = HeadWeights(layers, activation="relu", normalize_input=False)

    with pytest.raises(ModelFailed, match="NaN or infinity"):
        head.apply(np.ones((1, 2), np.float32))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"w0": [[1], [1]]}, "has 2 outputs"),
        ({"w0": [[1]], "b0": [0]}, "does not fit 2 inputs"),
        ({"w0": [[1], [1]], "b0": [0, 0]}, "does not fit 2 inputs"),
        ({"w0": [[1, 1], [1, 1]], "b0": [0, 0]}, "has 2 outputs, but there are 1 labels"),
        ({"x": [1], "y": [1]}, "`w0` or `b0` is missing"),
    ],
)
def test_a_file_of_another_shape_is_refused(
    tmp_path: Path, arrays: dict[str, object], message: str
) -> None:
    path = write(tmp_path / "head.npz", **arrays)

    with pytest.raises(ModelProblem, match=message):
        read_head(path, inputs=2, outputs=1)


def _plain_array() -> bytes:
    file = io.BytesIO()
    np.save(file, np.zeros((2, 1)))
    return file.getvalue()


def _archive() -> bytes:
    file = io.BytesIO()
    np.savez(file, w0=np.zeros((2, 1)), b0=np.zeros(1))
    return file.getvalue()


def _damaged() -> bytes:
    content = bytearray(_archive())
    content[len(content) // 3] ^= 0xFF
    return bytes(content)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"nothing", id="text"),
        pytest.param(b"", id="empty"),
        pytest.param(_plain_array(), id="one array"),
        pytest.param(_archive()[:-40], id="cut"),
        pytest.param(_damaged(), id="damaged"),
    ],
)
def test_a_file_that_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "head.npz"
    path.write_bytes(content)

    with pytest.raises(ModelProblem, match=r"head\.npz: "):
        read_head(path, inputs=2, outputs=1)


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "head.npz", w0=[[1], [float("nan")]], b0=[0])

    with pytest.raises(ModelProblem, match="`w0`"):
        read_head(path, inputs=2, outputs=1)
