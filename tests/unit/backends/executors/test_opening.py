"""A graph is captured by default only where that works, and has other forms only as ONNX."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from sluicegate.backends.errors import ModelProblem, OutOfMemory
from sluicegate.backends.executors.base import ModelExecutor
from sluicegate.backends.executors.cuda import RunLimits
from sluicegate.backends.executors.graph import GraphSource
from sluicegate.backends.executors.opening import open_capturing
from sluicegate.backends.executors.simulated import SimulatedExecutor
from sluicegate.backends.open_inference.address import RemoteModelServer


def opener(tried: list[int]) -> Callable[[RunLimits], ModelExecutor]:
    """Return what opens graphs on a device that captures none, and notes the rows asked for."""

    def open_executor(limits: RunLimits) -> ModelExecutor:
        tried.append(limits.graph_rows)
        if limits.graph_rows:
            raise ModelProblem("model.onnx: a node is on the CPU")
        return SimulatedExecutor(dimensions=1, worker_threads=1, base=0.0, token=0.0)

    return open_executor


def test_a_graph_that_cannot_be_captured_runs_without() -> None:
    tried: list[int] = []

    open_capturing(opener(tried), RunLimits(graph_rows=4), is_asked_for=False)

    assert tried == [4, 0]


def test_a_graph_that_is_too_large_when_captured_runs_without() -> None:
    def open_executor(limits: RunLimits) -> ModelExecutor:
        if limits.graph_rows:
            raise OutOfMemory("the device is out of memory for this model")
        return opener([])(limits)

    found = open_capturing(open_executor, RunLimits(graph_rows=4), is_asked_for=False)

    assert found.dimensions == 1


def test_capturing_that_was_asked_for_is_no_option() -> None:
    with pytest.raises(ModelProblem, match="a node is on the CPU"):
        open_capturing(opener([]), RunLimits(graph_rows=4), is_asked_for=True)


def test_what_cannot_be_opened_at_all_is_tried_once() -> None:
    tried: list[int] = []

    def open_executor(limits: RunLimits) -> ModelExecutor:
        tried.append(limits.graph_rows)
        raise ModelProblem("model.onnx: no graph")

    with pytest.raises(ModelProblem, match="no graph"):
        open_capturing(open_executor, RunLimits(), is_asked_for=False)
    assert tried == [0]


def test_only_a_local_onnx_file_has_other_forms() -> None:
    onnx = GraphSource(path=Path("model.onnx"), outputs={}, dimensions=1)
    table = msgspec.structs.replace(onnx, path=Path("table.npz"))
    remote = msgspec.structs.replace(onnx, upstream=RemoteModelServer(url="http://a", model="m"))

    assert [source.has_one_form for source in (onnx, table, remote)] == [False, True, True]
