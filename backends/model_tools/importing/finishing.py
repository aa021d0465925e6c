"""Completes an imported graph: renames inputs, appends modules, and checks the weights.

The modules are those of a sentence transformer, such as a pooling after the encoder.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tokenizers
from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto, external_data_helper, helper, numpy_helper

from sluicegate.backends.errors import ModelProblem, StartProblem
from sluicegate.backends.executors.padded_batch import INPUTS
from sluicegate.backends.model_tools.graphs.half import is_half
from sluicegate.backends.model_tools.graphs.heads import LOGITS
from sluicegate.backends.model_tools.importing.model_inputs import complete_inputs
from sluicegate.backends.model_tools.importing.outputs import add_outputs
from sluicegate.backends.model_tools.importing.sentence_graph import (
    POOLED,
    add_classifier,
    complete_graph,
)
from sluicegate.backends.model_tools.importing.setfit_head import LinearHead
from sluicegate.backends.model_tools.importing.source import CheckpointFolder, check_content
from sluicegate.backends.repository.sentence_modules import DenseModule
from sluicegate.backends.repository.sentence_settings import PROMPT_FILE, read_limits, read_prompts
from sluicegate.backends.tokenization.tokenizer import lower_cased
from sluicegate.backends.types import Pooling
from sluicegate.wire.protocol import Task

_TOKENS = ("tokens", "last_hidden_state", "token_embeddings")
_VECTORS = ("sentence_embedding", POOLED)
# The producer of graphs that Sluicegate built. These graphs have a pooling, but no other modules.
_PRODUCER = "sluicegate"
_PLAIN: tuple[Pooling, ...] = ("mean", "cls", "max")
# The outputs of exported graphs that answer questions.
ENDS = ("start_logits", "end_logits")
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)


def copy_graph(graph: Path, target: Path) -> None:
    """Copy a graph to `target` as `model.onnx`, with the files of its external data.

    Raises:
        StartProblem: the graph cannot be read, or one of these files is missing or truncated.
    """
    model = _load(graph)
    copied = set()
    for tensor in _external(model):
        entry = external_data_helper.ExternalDataInfo(tensor)
        beside = graph.parent / entry.location
        if Path(entry.location).name != entry.location or not beside.is_file():
            raise StartProblem(f"`{graph}` keeps weights in `{beside}`, which is missing")
        end = (entry.offset or 0) + (entry.length or 0)
        if beside.stat().st_size < end:
            raise StartProblem(f"`{beside}` is cut short: `{graph}` reads {end} bytes of it")
        copied.add(beside)
    for path in (graph, *copied):
        name = "model.onnx" if path == graph else path.name
        (target / name).write_bytes(path.read_bytes())


def finish_graph(path: Path, source: CheckpointFolder, fields: dict[str, Any]) -> None:
    """Rewrite a graph file with the input names of an encoder and with all modules.

    `fields` are the fields of the manifest. This function completes the field `outputs`, and
    removes the field `inputs`.

    Raises:
        StartProblem: the fields name an input or output that does not exist, a weight is NaN,
            or the graph cannot be completed.
    """
    model = _load(path)
    if source.graph is not None:
        _check_numbers(model, path, source.graph)
    if finish_model(model, source, fields):
        path.write_bytes(model.SerializeToString())


def finish_model(model: ModelProto, source: CheckpointFolder, fields: dict[str, Any]) -> bool:
    """Change a graph in memory as `finish_graph` changes a file; return whether it changed.

    Raises:
        StartProblem: the fields name an input or output that does not exist, or the graph cannot
            be completed.
    """
    inputs = fields.pop("inputs", None) or {}
    if not isinstance(inputs, dict):
        raise StartProblem("`inputs` must map names; write `inputs: {input_ids: NAME}`")
    if not isinstance(fields.get("outputs") or {}, dict):
        raise StartProblem("`outputs` must map names; write `outputs: {pooled: NAME}`")
    changed = _rename_inputs(model, inputs, source)
    if model.producer_name != _PRODUCER:
        try:
            changed = complete_inputs(model, source.config) or changed
        except ValueError as error:
            raise StartProblem(f"`{source.folder / 'config.json'}`: {error}") from None
    changed = _join_ends(model) or changed
    changed = _add_modules(model, source, fields) or changed
    changed = add_outputs(model, source, fields) or changed
    if source.head is not None:
        _add_head(model, source, source.head, fields)
    return changed or source.head is not None


def is_half_file(graph: Path) -> bool:
    """Return whether the matrices of a graph are in fp16; false if the file cannot be read."""
    try:
        return is_half(_load(graph))
    except StartProblem:
        return False


def _load(path: Path) -> ModelProto:
    check_content(path)
    try:
        model = onnx.load(str(path), load_external_data=False)
    except (OSError, DecodeError) as error:
        raise StartProblem(f"`{path}` is not an ONNX file, or is cut short: {error}") from None
    if not model.graph.output:
        raise StartProblem(f"`{path}` is not an ONNX file, or is cut short")
    return model


def _external(model: ModelProto) -> Iterator[TensorProto]:
    return (t for t in model.graph.initializer if external_data_helper.uses_external_data(t))


def _check_numbers(model: ModelProto, path: Path, graph: Path) -> None:
    for tensor in model.graph.initializer:
        if tensor.data_type in _FLOATS:
            values = numpy_helper.to_array(tensor, base_dir=str(path.parent))
            if np.isnan(values).any():
                raise StartProblem(f"`{graph}`: the weight `{tensor.name}` has a NaN")


def _rename_inputs(model: ModelProto, inputs: Mapping[str, str], source: CheckpointFolder) -> bool:
    found = [value.name for value in model.graph.input]
    for ours, theirs in inputs.items():
        if ours not in INPUTS or theirs not in found:
            raise StartProblem(
                f"`{source.graph or source.folder}`: cannot map the input `{theirs}` to `{ours}`; "
                f"the graph's inputs are {', '.join(found)}, and an encoder's are "
                f"{', '.join(INPUTS)}"
            )
    new = {theirs: ours for ours, theirs in inputs.items() if ours != theirs}
    for node in model.graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = new.get(name, name)
    for value in model.graph.input:
        value.name = new.get(value.name, value.name)
    return bool(new)


def _join_ends(model: ModelProto) -> bool:
    """Join the logits of starts and ends to one output, with two logits for each token."""
    graph = model.graph
    ends = {value.name: value for value in graph.output if value.name in ENDS}
    if len(ends) < len(ENDS):
        return False
    kind = ends[ENDS[0]].type.tensor_type.elem_type
    # Zeros keep the sizes of rows and tokens.
    shape = numpy_helper.from_array(np.array([0, 0, 1], np.int64), "ends.shape")
    graph.initializer.append(shape)
    for name in ENDS:
        graph.node.append(helper.make_node("Reshape", [name, shape.name], [f"{name}.column"]))
    columns = [f"{name}.column" for name in ENDS]
    graph.node.append(helper.make_node("Concat", columns, [LOGITS], axis=2))
    del graph.output[:]
    graph.output.append(
        helper.make_tensor_value_info(LOGITS, kind, ["batch", "sequence", len(ENDS)])
    )
    return True


def _add_modules(model: ModelProto, source: CheckpointFolder, fields: dict[str, Any]) -> bool:
    """Append the modules of a sentence transformer if the graph lacks them."""
    modules = source.modules
    if modules is None or not modules.is_pooled:
        return False
    outputs = {value.name for value in model.graph.output}
    named = fields.get("outputs") or {}
    pooled = next((name for name in (named.get("pooled"), *_VECTORS) if name in outputs), None)
    if model.producer_name != _PRODUCER and pooled is not None:
        _check_width(model, pooled, source)
        return False
    tokens = next((name for name in (named.get("tokens"), *_TOKENS) if name in outputs), None)
    if tokens is None:
        raise StartProblem(
            f"`{source.graph or source.folder}`: none of the outputs "
            f"{', '.join(sorted(outputs))} is known to be the token vectors; name the output "
            "with `--output tokens=NAME`"
        )
    skipped = _skipped(source, fields)
    is_plain = modules.pooling == (source.pooling(),) and not skipped
    try:
        complete_graph(
            model,
            modules,
            source.module_weights,
            tokens=tokens,
            is_pooled=pooled is not None and is_plain,
            skipped=skipped,
        )
    except ModelProblem as error:
        raise StartProblem(f"`{source.folder}`: {error}") from None
    if named:
        fields["outputs"] = {**named, "pooled": POOLED}
    return True


def _add_head(
    model: ModelProto, source: CheckpointFolder, head: LinearHead, fields: dict[str, Any]
) -> None:
    """Append the head of a SetFit model, which makes the model a classifier."""
    if read_prompts(source.find).default:
        raise StartProblem(
            f"`{source.find(PROMPT_FILE)}`: `default_prompt_name` is not supported for a model "
            f"with `{head.source}`; remove it, and send the prompt with each text"
        )
    outputs = {value.name for value in model.graph.output}
    named = (fields.pop("outputs", None) or {}).get("pooled")
    pooled = next((name for name in (named, *_VECTORS) if name in outputs), None)
    if pooled is None:
        raise StartProblem(
            f"`{source.graph or source.folder}`: none of the outputs {', '.join(sorted(outputs))} "
            f"is known to be the vector of a text, which `{head.source}` reads; name the output "
            "with `--output pooled=NAME`"
        )
    try:
        add_classifier(model, head, vectors=pooled)
    except ModelProblem as error:
        raise StartProblem(f"`{source.folder}`: {error}") from None
    for name, value in {
        "tasks": [Task.CLASSIFY.value],
        "labels": head.labels,
        "function": head.function,
        "token_types": False,  # the body may know only one type, and SetFit reads no pairs
    }.items():
        fields.setdefault(name, value)


def _check_width(model: ModelProto, pooled: str, source: CheckpointFolder) -> None:
    """Refuse a graph whose vectors are not as wide as the last module's output."""
    dense = (
        [m for m in source.modules.after if isinstance(m, DenseModule)] if source.modules else []
    )
    value = next(value for value in model.graph.output if value.name == pooled)
    sizes = value.type.tensor_type.shape.dim
    width = sizes[-1].dim_value if sizes else 0
    if dense and width and width != dense[-1].outputs:
        raise StartProblem(
            f"`{source.graph}`: the output `{pooled}` is {width} wide, but `{dense[-1].folder}` "
            f"has {dense[-1].outputs} outputs; export the whole model"
        )


def _skipped(source: CheckpointFolder, fields: dict[str, Any]) -> int:
    """Return how many tokens at the start of a row are not pooled: a special token and a prompt.

    The number becomes part of the graph, so the graph works with only one prompt. Therefore, a
    model with several prompts cannot rank documents.
    """
    prompts, limits = read_prompts(source.find), read_limits(source.find)
    prompt = str(fields.get("prompt", prompts.default))
    if source.modules is None or source.modules.include_prompt:
        return 0
    if (prompt or any(prompts.named.values())) and source.head is None:
        fields.setdefault("tasks", ["embed"])
    if not prompt:
        return 0
    text = source.tokenizer.text
    lowers = limits is not None and limits.lowercase
    tokenizer = tokenizers.Tokenizer.from_str(lower_cased(text) if lowers else text)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    found = tokenizer.encode(prompt)
    return len(found.ids) - found.special_tokens_mask[-1]
