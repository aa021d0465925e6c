"""Describes a graph, and checks that it has the inputs and outputs of an encoder."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from sluicegate.backends.errors import ModelProblem
from sluicegate.backends.executors.cost import MeasuredCosts
from sluicegate.backends.executors.padded_batch import INPUTS
from sluicegate.backends.open_inference.address import RemoteModelServer
from sluicegate.backends.types import JoinedWidth, OutputKind

_INTEGERS: dict[str, np.dtype[Any]] = {
    "tensor(int64)": np.dtype(np.int64),
    "tensor(int32)": np.dtype(np.int32),
}


class GraphSource(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the graph of a model: a local file, or (with `upstream`) one on another server."""

    path: Path
    outputs: dict[OutputKind, str]
    dimensions: int
    max_tokens: int | None = None
    """The length of the longest row that the graph reads."""
    digest: str = ""
    """Identifies the model's files. If it is empty, packed weights are not cached."""
    precision: str = "fp32"
    upstream: RemoteModelServer | None = None
    costs: MeasuredCosts | None = None
    """If set, the graph has passed its trial runs on this machine, and they are not repeated."""
    joined: JoinedWidth = JoinedWidth()
    has_adapters: bool = False
    """Whether the types of tokens choose the adapter of a row."""

    def width(self, kind: OutputKind, length: int) -> int:
        """Return the size of an output's last axis in a batch of `length` tokens a row."""
        return self.joined.of(length) if kind is OutputKind.JOINED else self.dimensions

    @property
    def has_one_form(self) -> bool:
        """Whether this machine can choose neither a quicker file nor another precision.

        It can choose them for a local ONNX file only.
        """
        return self.upstream is not None or self.path.suffix != ".onnx"

    @property
    def first_output(self) -> OutputKind:
        """The output that most rows need."""
        return next(iter(self.outputs))


def read_inputs(session: Any, path: Path) -> dict[str, np.dtype[Any]]:
    """Return the graph's inputs and their integer types.

    Raises:
        ModelProblem: an input has an unsupported name, or is not an integer.
    """
    inputs = {node.name: _INTEGERS.get(node.type) for node in session.get_inputs()}
    for name, kind in inputs.items():
        if name not in INPUTS or kind is None:
            expected = ", ".join(INPUTS)
            raise ModelProblem(
                f"{path}: input `{name}` is not supported; all inputs must be integers named "
                f"{expected}"
            )
    return {name: kind for name, kind in inputs.items() if kind is not None}


def check_adapters(inputs: Collection[str], source: GraphSource) -> None:
    """Check that a graph with these inputs can choose among adapters, if the model has some.

    Raises:
        ModelProblem: the graph does not read the types of tokens.
    """
    if source.has_adapters and "token_type_ids" not in inputs:
        raise ModelProblem(
            f"{source.path}: `adapters` need the input `token_type_ids`, which the graph does not "
            "have; import the model with its adapters, or remove the field"
        )


def check_graph(session: Any, source: GraphSource) -> None:
    """Check that the graph has the declared outputs and adapters, and that the widths match.

    An output without a fixed width is accepted.

    Raises:
        ModelProblem: an output or the input of adapters is missing, or an output has another width.
    """
    check_adapters([node.name for node in session.get_inputs()], source)
    widths = {node.name: node.shape[-1] for node in session.get_outputs()}
    for kind, name in source.outputs.items():
        if name not in widths:
            raise ModelProblem(
                f"{source.path}: the graph has no output `{name}`; it has {', '.join(widths)}"
            )
        is_fixed = isinstance(widths[name], int) and kind is not OutputKind.JOINED
        if is_fixed and widths[name] != source.dimensions:
            raise ModelProblem(
                f"{source.path}: output `{name}` is {widths[name]} wide, not "
                f"`dimensions: {source.dimensions}`"
            )
