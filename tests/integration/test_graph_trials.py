"""A graph that breaks its device or process harms neither the backend nor other graphs."""

import os
import signal
import threading
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest

from sluicegate.backends.errors import ExecutorDied, ModelFailed, ModelProblem, OutOfMemory
from sluicegate.backends.executors.base import ModelExecutor
from sluicegate.backends.executors.graph import GraphSource
from sluicegate.backends.executors.opening import OpenExecutor
from sluicegate.backends.executors.padded_batch import ones
from sluicegate.backends.qualification.graph_trials import (
    ChildTrials,
    graph_trials,
    local_trials,
)
from sluicegate.backends.settings import BackendSettings, Provider
from sluicegate.backends.types import OutputKind
from tests.support.executors import DummyExecutor

SOURCE = GraphSource(path=Path("well.onnx"), outputs={OutputKind.POOLED: "pooled"}, dimensions=4)
_ENOUGH = 300.0
BATCHES = [ones(2, 3, OutputKind.POOLED), ones(1, 9, OutputKind.POOLED)]


class Device:
    """Opens graphs that do what their names say."""

    def __init__(self) -> None:
        self._is_broken = False

    def __call__(self, source: GraphSource) -> ModelExecutor:
        if source.path.stem == "kills":
            os.kill(os.getpid(), signal.SIGKILL)
        if source.path.stem == "crashes":
            os.kill(os.getpid(), signal.SIGABRT)
        if source.path.stem == "hangs":
            threading.Event().wait()
        if source.path.stem == "fills":
            raise OutOfMemory("the device is out of memory for this model")
        if source.path.stem == "lacks":
            raise ModelProblem("lacks.onnx: no kernel")
        if source.path.stem == "breaks":
            self._is_broken = True
        if self._is_broken:
            raise ExecutorDied("the device failed") from ValueError(self)
        return DummyExecutor(dimensions=source.dimensions)


def make_device() -> OpenExecutor:
    """Return a fake device of the calling process."""
    return Device()


trials = partial(ChildTrials, make_device, patience=_ENOUGH)


def source(name: str) -> GraphSource:
    return msgspec.structs.replace(SOURCE, path=Path(f"{name}.onnx"))


def test_a_child_returns_the_results_of_this_process() -> None:
    here = local_trials(make_device())(SOURCE, BATCHES)
    with trials() as try_graph:
        there = try_graph(SOURCE, BATCHES)

    assert there.cost == here.cost
    for found, expected in zip(there.outputs, here.outputs, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_graph_that_ends_its_process_cannot_run() -> None:
    with trials() as try_graph:
        with pytest.raises(ModelFailed, match="the process that tried the graph ended") as failed:
            try_graph(source("crashes"), BATCHES)
        assert try_graph(SOURCE, BATCHES).outputs
    assert not isinstance(failed.value, OutOfMemory)


@pytest.mark.parametrize(("name", "why"), [("kills", "was killed"), ("fills", "out of memory")])
def test_a_lack_of_memory_is_not_a_graph_that_cannot_run(name: str, why: str) -> None:
    """If memory is short, the kernel kills the process."""
    with trials() as try_graph:
        with pytest.raises(OutOfMemory, match=why):
            try_graph(source(name), BATCHES)
        assert try_graph(SOURCE, BATCHES).outputs


def test_a_graph_that_hangs_cannot_run() -> None:
    with trials(patience=0.0) as try_graph, pytest.raises(ModelFailed, match="within 0 s"):
        try_graph(source("hangs"), BATCHES)


@pytest.mark.parametrize(("provider", "minutes"), [("cuda", 5), ("tensorrt", 30)])
def test_only_a_build_of_engines_may_take_long(provider: Provider, minutes: int) -> None:
    with graph_trials(BackendSettings(provider=provider))() as try_graph:
        assert isinstance(try_graph, ChildTrials)
        assert try_graph.patience == 60 * minutes


def test_a_broken_device_ends_its_process() -> None:
    with trials() as try_graph:
        with pytest.raises(ExecutorDied, match="the device failed"):
            try_graph(source("breaks"), BATCHES)
        assert try_graph(SOURCE, BATCHES).outputs


def test_a_graph_without_kernels_says_so() -> None:
    with trials() as try_graph:
        with pytest.raises(ModelProblem, match=r"lacks\.onnx: no kernel"):
            try_graph(source("lacks"), BATCHES)
        assert try_graph(SOURCE, BATCHES).outputs


def test_a_backend_on_a_gpu_tries_graphs_in_a_child() -> None:
    """The child reports that this machine has no GPU."""
    with graph_trials(BackendSettings(provider="cuda"))() as try_graph:
        assert try_graph is not None
        with pytest.raises(ModelProblem, match="`CUDAExecutionProvider`"):
            try_graph(SOURCE, BATCHES)


def test_a_backend_on_a_cpu_has_no_child() -> None:
    with graph_trials(BackendSettings(provider="cpu"))() as try_graph:
        assert try_graph is None
