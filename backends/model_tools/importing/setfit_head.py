"""Reads the head of a SetFit model, without its pickle.

The head is a linear layer over the vectors of a sentence transformer. It is in one of three files:

- `model_head.skops`: a logistic regression of scikit-learn, as `skops.io.dump` writes it.
- `model_head.safetensors`: the weights of SetFit's own differentiable head.
- `model_head.onnx`: a logistic regression of scikit-learn, as skl2onnx converts it.

The rules are those of `setfit` 1.2 (Apache-2.0) and `scikit-learn` 1.9 (BSD-3-Clause).
"""

import io
import json
import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import numpy as np
import onnx
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from onnx import NodeProto, helper

from sluicegate.backends.errors import ModelProblem, StartProblem
from sluicegate.backends.executors.provider import DeviceOptions, open_session
from sluicegate.backends.model_tools.graphs.weights import WeightsError, read_tensors
from sluicegate.backends.repository.sentence_modules import read_object
from sluicegate.wire.protocol import Function

CONFIG = "config_setfit.json"
PICKLES = ("model_head.pkl", "model_head.joblib", "model_head.pt")
_PARAMETERS = ("temperature", "eps", "multitarget")
_TO_SKOPS = '`import skops.io` and `skops.io.dump(model.model_head, "model_head.skops")`'
_TO_SAFETENSORS = (
    "`from safetensors.torch import save_file; head = model.model_head` and "
    '`save_file(head.state_dict(), "model_head.safetensors", {n: str(getattr(head, n)) for n in '
    f"{_PARAMETERS}}})`"
)
_LARGEST_BYTES = 256 * 2**20
_TOLERANCE = 1e-4
_TRIALS = 64
_TWO = _MATRIX = 2
_CPU = DeviceOptions(provider="cpu")


def how_to_convert(folder: Path, name: str) -> str:
    """Return what is wrong with a head that is a pickle, and what to do. Nothing is loaded.

    A pickle on the hub is not fetched. It is taken for one of scikit-learn.
    """
    content = (folder / name).read_bytes() if (folder / name).is_file() else b""
    lines = _TO_SAFETENSORS if b"SetFitHead" in content else _TO_SKOPS
    return (
        f"`{folder}` has `{name}`, a pickle, which runs code when it is read; if you "
        f"trust it, load the model with SetFit as `model`, run {lines}, and copy the new file into "
        f"the folder; or import only the encoder with `--ignore {name}`"
    )


class LinearHead(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Holds a linear layer: `weight` `[labels, width]`, `bias`, and the function of its logits.

    With `normalize`, vectors are scaled to length one before the layer.
    """

    source: str
    weight: NDArray[np.float32]
    bias: NDArray[np.float32]
    labels: list[str]
    function: Function
    normalize: bool = False


class _Layer(NamedTuple):
    """Holds a layer as its file has it, and the classes that its rows stand for."""

    weight: NDArray[Any]
    bias: NDArray[Any]
    classes: Sequence[Any]
    function: Function


def read_setfit_head(folder: Path, ignored: Collection[str] = ()) -> LinearHead | None:
    """Return the head of a SetFit model; `None` if the folder has none that can be read.

    Raises:
        StartProblem: the head is damaged, or is no linear layer.
    """
    name = next((n for n in HEADS if n not in ignored and (folder / n).is_file()), None)
    if name is None:
        return None
    path = folder / name
    if path.stat().st_size > _LARGEST_BYTES:
        raise StartProblem(f"`{path}` is larger than {_LARGEST_BYTES} bytes")
    try:
        layer = HEADS[name](path)
        weight, bias = _matrix(layer)
    except StartProblem:
        raise
    except Exception as error:  # noqa: BLE001 - damaged files raise many types of errors
        raise StartProblem(
            f"`{path}`: cannot be read as a head of SetFit: {type(error).__name__}: {error}"
        ) from None
    config = read_object(folder / CONFIG)
    if config.get("spacy_model") is not None:
        raise StartProblem(
            f"`{folder / CONFIG}`: `spacy_model` finds the aspects of a text, which is not "
            "supported; import a SetFit model that reads whole texts"
        )
    if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
        raise StartProblem(f"`{path}` has a NaN or an infinity; train the head again")
    return LinearHead(
        source=name,
        weight=weight,
        bias=bias,
        labels=_labels(folder / CONFIG, config.get("labels"), layer.classes),
        function=layer.function,
        normalize=bool(config.get("normalize_embeddings")),
    )


def _matrix(layer: _Layer) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the weight and the bias of a layer in float32."""
    weight, bias = np.asarray(layer.weight), np.asarray(layer.bias)
    if weight.dtype.kind not in "fiu" or bias.dtype.kind not in "fiu":
        raise ValueError(f"the weights are {weight.dtype} and {bias.dtype}, not real numbers")
    if weight.ndim != _MATRIX or bias.shape != weight.shape[:1]:
        raise ValueError(f"the weight is {weight.shape}, and the bias {bias.shape}")
    return weight.astype(np.float32), bias.astype(np.float32)


def _labels(path: Path, given: Any, classes: Sequence[Any]) -> list[str]:
    """Return the names of the logits: a class is a name itself, or the number of a name."""
    if not given or any(isinstance(each, str) for each in classes):
        return [str(each) for each in classes]
    numbers = [int(each) for each in classes]
    if not isinstance(given, list) or not 0 <= min(numbers) <= max(numbers) < len(given):
        raise StartProblem(f"`{path}`: `labels` has no name for each of {len(numbers)} classes")
    return [str(given[number]) for number in numbers]


def _read_safetensors(path: Path) -> _Layer:
    try:
        tensors, metadata = read_tensors(path)
    except WeightsError as error:
        raise StartProblem(str(error)) from None
    weight, bias = tensors.get("linear.weight"), tensors.get("linear.bias")
    if weight is None or set(tensors) - {"linear.weight", "linear.bias"}:
        raise StartProblem(f"`{path}` has the weights {', '.join(tensors)}, not `linear.weight`")
    if not set(_PARAMETERS) <= set(metadata):
        raise StartProblem(
            f"`{path}`: the metadata lacks {', '.join(_PARAMETERS)}; save the head with "
            f"{_TO_SAFETENSORS}"
        )
    scale = float(metadata["temperature"]) + float(metadata["eps"])
    bias = np.zeros(len(weight)) if bias is None else bias
    function: Function = "sigmoid" if metadata["multitarget"] == "True" else "softmax"
    return _Layer(weight / scale, bias / scale, range(len(weight)), function)


def _read_skops(path: Path) -> _Layer:
    """Read the arrays of a logistic regression; no class that the file names is loaded."""
    try:
        with zipfile.ZipFile(path) as file:
            archive = _Archive(file)
            return _estimator(json.loads(archive.read("schema.json")), archive)
    except RecursionError:
        raise ValueError("`schema.json` nests too deeply") from None


def _estimator(node: Mapping[str, Any], archive: "_Archive") -> _Layer:
    kind, fields = node["__class__"], _content(node)
    if kind == "LogisticRegression":
        return _regression(fields, archive)
    if kind not in {"OneVsRestClassifier", "MultiOutputClassifier"}:
        raise ValueError(f"`{kind}` is not supported; train a `LogisticRegression`")
    parts = [_estimator(each, archive) for each in fields["estimators_"]["content"]]
    of_labels = _content(fields["label_binarizer_"]) if "label_binarizer_" in fields else {}
    if of_labels and not str(_value(of_labels["y_type_"])).startswith("multilabel"):
        raise ValueError(f"`{kind}` for one label of several is not supported")
    if any(len(part.classes) != _TWO for part in parts):
        raise ValueError(f"a label of the `{kind}` does not have two classes")
    weight, bias = (np.stack([part[place][-1] for part in parts]) for place in (0, 1))
    return _Layer(weight, bias, range(len(parts)), "sigmoid")


def _regression(fields: Mapping[str, Any], archive: "_Archive") -> _Layer:
    weight, bias, classes = (
        _array(fields[name], archive) for name in ("coef_", "intercept_", "classes_")
    )
    # Before scikit-learn 1.8, `multi_class` said how several classes are trained.
    kind = _value(fields["multi_class"]) if "multi_class" in fields else None
    solver = _value(fields["solver"])
    is_binary = len(classes) == _TWO
    apart = kind == "ovr" or (kind in {"auto", "deprecated"} and solver == "liblinear")
    if apart and not is_binary:
        raise ValueError("a `LogisticRegression` with `ovr` is not supported; use `multinomial`")
    if is_binary:
        # One logit. The other class has the logit 0, or the opposite one if `multinomial`.
        other = -1.0 if kind == "multinomial" else 0.0
        weight, bias = np.concatenate([other * weight, weight]), np.append(other * bias, bias)
    if weight.shape[:1] != bias.shape or len(bias) != len(classes):
        raise ValueError(f"`coef_` is {weight.shape} for {len(classes)} classes")
    return _Layer(weight, bias, classes.tolist(), "softmax")


def _content(node: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = node["content"]["content"]
    return found


def _value(node: Mapping[str, Any]) -> Any:
    return json.loads(node["content"])


def _array(node: Mapping[str, Any], archive: "_Archive") -> NDArray[Any]:
    if node.get("type") != "numpy":
        raise ValueError("an array of Python objects is not supported; use labels of one type")
    array: NDArray[Any] = np.load(io.BytesIO(archive.read(node["file"])), allow_pickle=False)
    return array


class _Archive:
    """Unpacks members of an archive; all that is unpacked has at most `_LARGEST_BYTES`.

    Estimators may name the same member, so the bound is not on the size of the archive.
    """

    def __init__(self, file: zipfile.ZipFile) -> None:
        self._file = file
        self._left = _LARGEST_BYTES

    def read(self, name: str) -> bytes:
        """Return the content of a member."""
        self._left -= self._file.getinfo(name).file_size
        if self._left < 0:
            raise ValueError(f"its content is larger than {_LARGEST_BYTES} bytes")
        return self._file.read(name)


def _read_onnx(path: Path) -> _Layer:
    """Read the layer of a graph, and check that the layer scores vectors as the graph does."""
    try:
        model = onnx.load(str(path))
    except (OSError, DecodeError) as error:
        raise StartProblem(f"`{path}` is not an ONNX file, or is cut short: {error}") from None
    found = [_attributes(n) for n in model.graph.node if n.op_type == "LinearClassifier"]
    if not found:
        raise StartProblem(
            f"`{path}` has no `LinearClassifier`; convert a `LogisticRegression` with skl2onnx"
        )
    layer = _linear_classifier(found[0]) if len(found) == 1 else _linear_classifiers(found)
    if not _scores_alike(path, layer):
        raise StartProblem(
            f"`{path}` does not only compute its `LinearClassifier`; save the head with skops"
        )
    return layer


def _attributes(node: NodeProto) -> dict[str, Any]:
    return {each.name: helper.get_attribute_value(each) for each in node.attribute}


def _linear_classifier(given: Mapping[str, Any]) -> _Layer:
    names = [name.decode() for name in given.get("classlabels_strings", ())]
    classes = names or list(given.get("classlabels_ints", ()))
    bias = np.array(given["intercepts"])
    weight = np.array(given["coefficients"]).reshape(len(bias), -1)
    if given.get("post_transform") == b"LOGISTIC" and len(bias) == _TWO:
        # The rows are opposite: the softmax of one and zero is the same.
        weight, bias = weight * [[0.0], [1.0]], bias * [0.0, 1.0]
    is_softmax = given.get("post_transform") == b"SOFTMAX" or len(bias) == _TWO
    return _Layer(weight, bias, classes, "softmax" if is_softmax else "sigmoid")


def _linear_classifiers(given: Sequence[Mapping[str, Any]]) -> _Layer:
    parts = [_linear_classifier(each) for each in given]
    weight, bias = (np.stack([part[place][-1] for part in parts]) for place in (0, 1))
    return _Layer(weight, bias, range(len(parts)), "sigmoid")


def _scores_alike(path: Path, layer: _Layer) -> bool:
    vectors = np.random.default_rng(0).normal(size=(_TRIALS, layer.weight.shape[1]))
    vectors = vectors.astype(np.float32)
    logits = vectors @ layer.weight.T + layer.bias
    if layer.function == "softmax":
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        scores = powers / powers.sum(axis=1, keepdims=True)
    else:
        scores = 1.0 / (1.0 + np.exp(-logits))
    try:
        session = open_session(path, _CPU)
        (given,) = session.get_inputs()
        found = session.run(None, {given.name: vectors})[-1]
    except (ModelProblem, ValueError):
        return False
    except Exception:  # noqa: BLE001 - ONNX Runtime's errors have no other common base class
        return False
    if isinstance(found, list):  # skl2onnx puts the scores into a dictionary by default
        found = np.array([[line[each] for each in layer.classes] for line in found])
    return found.shape == scores.shape and bool(np.abs(found - scores).max() <= _TOLERANCE)


# The files of heads, and the functions that read them; the first file that exists is used.
HEADS: Mapping[str, Callable[[Path], _Layer]] = MappingProxyType(
    {
        "model_head.skops": _read_skops,
        "model_head.safetensors": _read_safetensors,
        "model_head.onnx": _read_onnx,
    }
)
