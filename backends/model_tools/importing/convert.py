"""Converts a Hugging Face folder to a revision of a model repository."""

import importlib
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto

from sluicegate.backends.errors import StartProblem
from sluicegate.backends.model_tools.graphs.checkpoint import FAMILIES, build_checkpoint
from sluicegate.backends.model_tools.graphs.graph_builder import StoredWeights, nothing_stored
from sluicegate.backends.model_tools.graphs.options import GraphOptions
from sluicegate.backends.model_tools.graphs.static import build_static
from sluicegate.backends.model_tools.graphs.weight_file import CHANGED, NAME, WeightFile, is_large
from sluicegate.backends.model_tools.graphs.weights import Weights, WeightsError
from sluicegate.backends.model_tools.importing.device_graphs import (
    write_device_graphs,
    write_optimized_graphs,
)
from sluicegate.backends.model_tools.importing.finishing import (
    copy_graph,
    finish_graph,
    finish_model,
)
from sluicegate.backends.model_tools.importing.gliner import write_gliner
from sluicegate.backends.model_tools.importing.gliner2 import Gliner2Config, write_gliner2
from sluicegate.backends.model_tools.importing.outputs import reads_unattended
from sluicegate.backends.model_tools.importing.rebuild import rebuild
from sluicegate.backends.model_tools.importing.source import CheckpointFolder, open_source
from sluicegate.backends.repository.graph_file import read_graph_file
from sluicegate.backends.repository.sentence_settings import LIMIT_FILES, PROMPT_FILE
from sluicegate.backends.repository.tokenizer_files import CONFIG as TOKENIZER_CONFIG

_CONFIG = "config.json"
# Files that a backend reads to infer the task, labels, lengths and pooling.
_KEPT = (
    _CONFIG,
    TOKENIZER_CONFIG,
    *LIMIT_FILES,
    PROMPT_FILE,
)
_TYPES, _LOGITS = "token_type_ids", "logits"
_TEXT_RANK = 2
_GRAPH, TOKENIZER, _MANIFEST = "model.onnx", "tokenizer.json", "model.yaml"
_EXPORTER = "optimum.exporters.onnx"
# The names of optimum's tasks, by the head of the model.
_TASKS: Mapping[str, str] = MappingProxyType(
    {
        "ForSequenceClassification": "text-classification",
        "ForTokenClassification": "token-classification",
        "ForMultipleChoice": "multiple-choice",
        "ForQuestionAnswering": "question-answering",
    }
)


def convert(folder: Path, target: Path, given: Mapping[str, Any] | None = None) -> str:
    """Write `model.onnx` and all other files to `target`; return the origin of the graph.

    Fields in `given` override the fields of a `model.yaml` in the folder.

    Raises:
        StartProblem: the folder has no model, or no graph can be made from it.
    """
    return convert_source(open_source(folder, given), target)


def convert_source(source: CheckpointFolder, target: Path) -> str:
    """Write `model.onnx` and all other files to `target`; return the origin of the graph.

    Raises:
        StartProblem: no graph can be made from the folder.
    """
    target.mkdir(parents=True, exist_ok=True)
    if source.gliner is not None:
        (target / TOKENIZER).write_text(source.tokenizer.text, encoding="utf-8")
        made_of = (source.config, source.weights(), source.tokenizer.load())
        if isinstance(source.gliner, Gliner2Config):
            return write_gliner2(source.gliner, *made_of, target, source.fields)
        return write_gliner(source.gliner, *made_of, target, source.fields)
    origin, weights = _write_graph(source, target)
    fields = dict(source.fields)
    if weights is not None and (names := source.adapter_names(weights)):
        fields["adapters"] = names
        origin += f"; requests choose an adapter: {', '.join(names)}"
    tokenizer = source.tokenizer
    _check_types(source, target / _GRAPH)
    if tokenizer.changed:
        origin += f"; {', '.join(tokenizer.changed)} of the tokenizer as in `{tokenizer.name}`"
    finish_graph(target / _GRAPH, source, fields)
    if weights is not None:
        write_device_graphs(
            target / _GRAPH,
            source.config,
            weights,
            source.pooling(),
            finish=lambda model: finish_model(model, source, dict(source.fields)),
        )
    elif source.table is None and not reads_unattended(source):
        write_optimized_graphs(target / _GRAPH, source.config)
    _write_files(source, target, fields)
    return origin


def _write_files(source: CheckpointFolder, target: Path, fields: dict[str, Any]) -> None:
    """Write the tokenizer, the manifest, and the files from which a backend infers fields."""
    fields.pop("graph", None)
    fields.pop("tokenizer", None)
    for name in _KEPT:
        if source.find(name).is_file():
            shutil.copyfile(source.find(name), target / name)
    if source.adapter is not None:
        (target / _CONFIG).write_text(json.dumps(source.config, indent=2), encoding="utf-8")
    tokenizer, ranking = source.tokenizer, source.ranking
    text = tokenizer.text if ranking is None else ranking.fill_tokenizer(tokenizer.text)
    (target / TOKENIZER).write_text(text, encoding="utf-8")
    if tokenizer.config is not None:
        document = json.dumps(tokenizer.config, ensure_ascii=False, indent=2)
        (target / TOKENIZER_CONFIG).write_text(document, encoding="utf-8")
    if fields:
        (target / _MANIFEST).write_text(yaml.safe_dump(fields), encoding="utf-8")


def _check_types(source: CheckpointFolder, graph: Path) -> None:
    """Refuse a tokenizer that sends token types for which the model has no embeddings."""
    known, file = source.config.get("type_vocab_size"), read_graph_file(graph)
    takes = any(value.name == _TYPES for value in file.inputs)
    # Pairs of texts are sent only to models that have logits for each text.
    pairs = any(value.name == _LOGITS and value.rank == _TEXT_RANK for value in file.outputs)
    if takes and pairs and isinstance(known, int) and source.fields.get("token_types", True):
        try:
            source.tokenizer.check_types(known)
        except StartProblem as error:
            raise StartProblem(f"`{source.folder}`: {error}") from None


def _write_graph(source: CheckpointFolder, target: Path) -> tuple[str, Weights | None]:
    """Write the graph. Return its origin and, if it was built from weights, the weights."""
    kind = str(source.config.get("model_type"))
    if source.table is not None:
        (target / _GRAPH).write_bytes(build_static(source.table).SerializeToString())
        return "a table of token vectors", None
    is_pooled = source.modules is None or source.modules.is_pooled
    if source.graph is not None and not is_pooled:
        copy_graph(source.graph, target)
        return f"the graph `{source.graph.relative_to(source.folder)}`", None
    if source.graph is not None:
        name = f"the graph `{source.graph.relative_to(source.folder)}`"
        try:
            model, weights = rebuild(source, source.graph)
        except WeightsError as error:
            copy_graph(source.graph, target)
            return f"{name}, unchanged: {error}", None
        (target / _GRAPH).write_bytes(model.SerializeToString())
        return f"{name}, rebuilt as a `{kind}`", weights
    if kind not in FAMILIES:
        if source.adapter or source.adapters or source.task_adapter is not None:
            raise StartProblem(
                f"`{source.folder}`: no adapter can be merged into a `{kind}`; "
                "merge it with `merge_and_unload()`, save the model and import that"
            )
        with tempfile.TemporaryDirectory() as exported:
            _export(source.folder, source.config, Path(exported))
            copy_graph(Path(exported, _GRAPH), target)
        return f"`{kind}` weights, exported by optimum", None
    weights, unattended = source.weights(), reads_unattended(source)
    options = GraphOptions(attention="plain" if unattended else "gathered")
    try:
        model = _build(source, weights, target, options)
    except WeightsError as error:
        raise StartProblem(f"`{source.folder}`: {error}") from None
    (target / _GRAPH).write_bytes(model.SerializeToString())
    adapted = f", with the adapter `{source.adapter.folder}`" if source.adapter else ""
    # Other kinds of attention do not compute tokens that no token attends to.
    return f"`{kind}` weights{adapted}", None if unattended else weights


def _build(
    source: CheckpointFolder, weights: Weights, target: Path, options: GraphOptions
) -> ModelProto:
    """Return the graph of a checkpoint; large and shared weights are written beside it."""
    stored: StoredWeights = nothing_stored
    shared = source.unchanged(weights)
    with ExitStack() as stack:
        if is_large(weights.values()):
            name = CHANGED if shared else NAME
            stored = stack.enter_context(WeightFile(target, name)).add
        if shared:
            file = stack.enter_context(WeightFile(target))
            stored = partial(_store, file=file, shared=[*shared.values()], other=stored)
        return build_checkpoint(
            source.config, weights, pooling=source.pooling(), options=options, stored=stored
        )


def _store(
    name: str,
    tensor: NDArray[np.float32],
    *,
    file: WeightFile,
    shared: Sequence[NDArray[np.float32]],
    other: StoredWeights,
) -> TensorProto | None:
    """Write a weight to the file of `shared` weights if it is one of them, also transposed."""
    is_shared = any(np.may_share_memory(tensor, each) for each in shared)
    return file.add(name, tensor) if is_shared else other(name, tensor)


def _export(folder: Path, config: Mapping[str, Any], target: Path) -> None:
    """Write the graph of a folder to `target`, as `optimum-cli export onnx` does.

    Raises:
        StartProblem: optimum is not installed, or cannot export the model.
    """
    kind = config.get("model_type")
    if kind is None:
        raise StartProblem(
            f"`{folder / 'config.json'}` has no `model_type`, which names the model's family; save "
            "the model with `save_pretrained`"
        )
    try:
        exporter = importlib.import_module(_EXPORTER)
    except ImportError as error:
        raise StartProblem(
            f"`{folder}`: `{kind}` models must be exported by optimum, but the package "
            f"`{error.name}` is missing; it needs transformers 4, so use a separate environment: "
            f"`pip install optimum-onnx`, `optimum-cli export onnx --model {folder} --task "
            f"{_task(config)} FOLDER`, then import FOLDER; these models need no export: "
            f"{', '.join(FAMILIES)}"
        ) from None
    try:
        exporter.main_export(str(folder), output=target, task=_task(config), do_validation=False)
    except Exception as error:  # noqa: BLE001 - torch and the exporter raise many types of errors
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise StartProblem(
            f"`{folder}`: optimum cannot export the model: {reason[0]}; export it with "
            "`torch.onnx.export` and inputs `input_ids` and `attention_mask`, and import the result"
        ) from None


def _task(config: Mapping[str, Any]) -> str:
    names = config.get("architectures") or [""]
    found = (task for end, task in _TASKS.items() if str(names[0]).endswith(end))
    return next(found, "feature-extraction")
