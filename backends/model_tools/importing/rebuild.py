"""Rebuilds an exported graph with Sluicegate's own nodes, and compares the outputs of both."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto

from sluicegate.backends.errors import ModelProblem
from sluicegate.backends.executors.padded_batch import PaddedBatch, pad
from sluicegate.backends.executors.provider import DeviceOptions, open_session
from sluicegate.backends.model_tools.graphs.checkpoint import FAMILIES, build_checkpoint
from sluicegate.backends.model_tools.graphs.exported import read_exported
from sluicegate.backends.model_tools.graphs.weight_file import MOST_BYTES
from sluicegate.backends.model_tools.graphs.weights import Weights, WeightsError
from sluicegate.backends.model_tools.importing.finishing import ENDS
from sluicegate.backends.model_tools.importing.source import CheckpointFolder
from sluicegate.backends.repository.config_defaults import padding_id
from sluicegate.backends.types import OutputKind

# The outputs of exported graphs, and the matching outputs of a rebuilt graph.
_OUTPUTS = {
    "logits": "logits",
    "last_hidden_state": "tokens",
    "token_embeddings": "tokens",
    "tokens": "tokens",
    "sentence_embedding": "pooled",
    "pooled": "pooled",
}
# Fields of the manifest with names that a rebuilt graph does not have.
_NAMED = {"inputs", "output", "outputs"}
_LENGTHS = (3, 48, 1, 17, 9)
_TOLERANCE = 1e-4
# The number of ids and positions if the configuration does not name them.
_WORDS = 100
_CPU = DeviceOptions(provider="cpu")


def rebuild(source: CheckpointFolder, graph: Path) -> tuple[ModelProto, Weights]:
    """Rebuild an exported graph from its weights, and check that both graphs' outputs agree.

    Returns:
        The rebuilt graph, and the weights by their names in the checkpoint.

    Raises:
        WeightsError: the family is unknown, a weight is missing, or the outputs differ.
    """
    kind = str(source.config.get("model_type"))
    if _NAMED & set(source.fields):
        raise WeightsError("`model.yaml` or an option names its inputs or outputs")
    if kind not in FAMILIES:
        raise WeightsError(f"no graph can be built for the family `{kind}`")
    try:
        weights = read_exported(onnx.load(str(graph)))
        rebuilt = build_checkpoint(source.config, weights, pooling=source.pooling())
    except WeightsError:
        raise
    except Exception as error:  # noqa: BLE001 - the graph is then served unchanged
        raise WeightsError(f"it cannot be read: {type(error).__name__}") from None
    if sum(tensor.nbytes for tensor in weights.values()) > MOST_BYTES:
        raise WeightsError("its weights are too large for one file")
    _compare(graph, rebuilt, source)
    return rebuilt, weights


def _compare(graph: Path, rebuilt: ModelProto, source: CheckpointFolder) -> None:
    """Run both graphs on the same rows.

    Raises:
        WeightsError: outputs differ by more than rounding explains, or cannot be compared.
    """
    config = source.config
    batch = make_batch(config, special_ids(source))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        path.write_bytes(rebuilt.SerializeToString())
        try:
            expected, found = _run(graph, batch, config), _run(path, batch, config)
        except ModelProblem as error:
            raise WeightsError(str(error)) from None
    shared = [name for name in expected if _OUTPUTS.get(name) in found]
    if not shared or any(name in _OUTPUTS and name not in shared for name in expected):
        raise WeightsError(f"the outputs are {', '.join(expected)}")
    for name in shared:
        right, other = expected[name], found[_OUTPUTS[name]]
        if right.shape != other.shape:
            raise WeightsError(f"`{name}` would be {other.shape}, not {right.shape}")
        real = batch.mask.astype(bool) if right.ndim > 2 else ...  # noqa: PLR2004 - tokens of rows
        apart = float(np.abs(right[real] - other[real]).max())
        if not apart <= _TOLERANCE * max(1.0, float(np.abs(right[real]).max())):
            raise WeightsError(f"`{name}` would differ by {apart:.2g}")


def special_ids(source: CheckpointFolder) -> list[int]:
    """Return the ids of the added tokens, and of the tokens that `config.json` names."""
    added = source.tokenizer.load().get_added_tokens_decoder()
    named = (value for name, value in source.config.items() if name.endswith("_token_id"))
    return sorted({*added, *(value for value in named if isinstance(value, int))})


def make_batch(config: Mapping[str, Any], special: Sequence[int]) -> PaddedBatch:
    """Return random rows of different lengths and token types; every special id occurs in one."""
    random = np.random.default_rng(0)
    words = int(config.get("vocab_size") or _WORDS)
    longest = int(config.get("max_position_embeddings") or _WORDS) // 2
    rows = [
        random.integers(words, size=min(length, longest), dtype=np.int32) for length in _LENGTHS
    ]
    known = np.array([number for number in special if 0 <= number < words], dtype=np.int32)
    # Put each special id between other tokens, whose outputs may depend on it.
    mixed = np.stack([known, random.integers(words, size=len(known), dtype=np.int32)], axis=1)
    flat = mixed.reshape(-1)
    step = max(1, longest // 2 * 2)
    rows += [flat[start : start + step] for start in range(0, len(flat), step)]
    batch = pad(rows, OutputKind.POOLED)
    types = random.integers(max(1, int(config.get("type_vocab_size") or 1)), size=batch.ids.shape)
    return msgspec.structs.replace(batch, type_ids=(types * batch.mask).astype(np.int32))


def _run(
    path: Path, batch: PaddedBatch, config: Mapping[str, Any]
) -> dict[str, NDArray[np.float32]]:
    """Return the outputs of a graph for a batch, by name.

    Raises:
        ModelProblem: the graph cannot be run.
    """
    session = open_session(path, _CPU)
    given = batch.by_input()
    # Some families count positions from the padding token's id.
    given["input_ids"] = np.where(batch.mask, batch.ids, padding_id(config))
    types = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}
    names = [node.name for node in session.get_outputs()]
    try:
        feeds = {n.name: given[n.name].astype(types[n.type]) for n in session.get_inputs()}
        found = dict(zip(names, session.run(names, feeds), strict=True))
    except Exception as error:  # ONNX Runtime's errors have no other common base class
        raise ModelProblem(f"the graph cannot be run: {type(error).__name__}") from error
    if set(ENDS) <= found.keys():
        found["logits"] = np.stack([found.pop(name) for name in ENDS], axis=-1)
    return found
