"""Describes a graph file, and checks that a session over it is an encoder."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from backends.errors import ModelProblem
from backends.executors.padded_batch import INPUTS
from backends.open_inference.address import RemoteModelServer
from backends.types import OutputKind

_INTEGERS: dict[str, np.dtype[Any]] = {
    "tensor(int64)": np.dtype(np.int64),
    "tensor(int32)": np.dtype(np.int32),
}


class GraphSource(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a graph file: its outputs, and the longest row it has positions for.

    A `digest` of what the file depends on lets its packed weights be kept beside it. With an
    `upstream` another server runs it, and there is no file. `profile` is the precision that the
    model declares.
    """

    path: Path
    outputs: dict[OutputKind, str]
    dimensions: int
    max_tokens: int | None = None
    digest: str = ""
    profile: str = "fp32"
    upstream: RemoteModelServer | None = None

    @property
    def first_output(self) -> OutputKind:
        """The output that most rows ask for."""
        return next(iter(self.outputs))


def read_inputs(session: Any, path: Path) -> dict[str, np.dtype[Any]]:
    """Return the graph's inputs and the integers each takes.

    Raises:
        ModelProblem: one of them is none of an encoder's.
    """
    inputs = {node.name: _INTEGERS.get(node.type) for node in session.get_inputs()}
    for name, kind in inputs.items():
        if name not in INPUTS or kind is None:
            raise ModelProblem(f"{path}: input `{name}` is none of an encoder's integer inputs")
    return {name: kind for name, kind in inputs.items() if kind is not None}


def check_outputs(session: Any, source: GraphSource) -> None:
    """Make sure that the outputs are there, as wide as declared where the graph says it.

    Raises:
        ModelProblem: one is not.
    """
    widths = {node.name: node.shape[-1] for node in session.get_outputs()}
    for name in source.outputs.values():
        if name not in widths:
            raise ModelProblem(
                f"{source.path}: it has no output `{name}`; it has {', '.join(widths)}"
            )
        if isinstance(widths[name], int) and widths[name] != source.dimensions:
            raise ModelProblem(
                f"{source.path}: output `{name}` is {widths[name]} wide, not "
                f"`dimensions: {source.dimensions}`"
            )
