"""A graph for CPUs runs on a GPU only after trial batches answered as on a CPU."""

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import msgspec
import numpy as np
import pytest
from typing_extensions import override

from sluicegate.backends.errors import ModelFailed, ModelProblem
from sluicegate.backends.executors.base import ModelExecutor
from sluicegate.backends.executors.graph import GraphSource
from sluicegate.backends.executors.onnx import OnnxExecutor
from sluicegate.backends.executors.padded_batch import PaddedBatch
from sluicegate.backends.model_tools.graphs.grids import WIDTHS
from sluicegate.backends.model_tools.graphs.options import GraphOptions
from sluicegate.backends.model_tools.graphs.shapes import BertShape
from sluicegate.backends.qualification.fallback import RECORD, check_fallback, trial_batches
from sluicegate.backends.qualification.graph_trials import GraphTrial, local_trials
from sluicegate.backends.types import FloatArray, OutputKind
from testing.bert import pooled_bert, seeded_weights
from tests.support.expanded_graphs import expand

SHAPE = BertShape(layers=1, hidden=32, heads=4, intermediate=64, vocab=50, positions=48)


@pytest.fixture
def source(tmp_path: Path) -> GraphSource:
    """The graph for CPUs, alone in its folder."""
    graph = pooled_bert(SHAPE, seeded_weights(SHAPE, seed=3), GraphOptions(attention="gathered"))
    path = tmp_path / "model.onnx"
    path.write_bytes(graph.SerializeToString())
    return GraphSource(
        path=path,
        outputs={OutputKind.POOLED: "pooled", OutputKind.TOKENS: "tokens"},
        dimensions=SHAPE.hidden,
        max_tokens=SHAPE.positions,
        digest="one",
    )


def classes(batch: PaddedBatch) -> set[int]:
    """Return which classes of lengths have rows."""
    return {int(np.searchsorted(WIDTHS, length)) for length in batch.mask.sum(axis=1)}


class Device(OnnxExecutor):
    """Stands in for a GPU that cannot compute attention of zero rows, or computes it wrongly."""

    empty: Callable[[FloatArray], FloatArray] | None = None

    @override
    def run(self, batch: PaddedBatch) -> FloatArray:
        found = super().run(batch)
        if self.empty is not None and len(classes(batch)) <= len(WIDTHS):
            return self.empty(found)
        return found


class Opening:
    """Opens graphs on the device, and counts them."""

    def __init__(self, empty: Callable[[FloatArray], FloatArray] | None = None) -> None:
        self._empty = empty
        self.opened = 0

    def __call__(self, source: GraphSource) -> ModelExecutor:
        self.opened += 1
        device = Device(msgspec.structs.replace(source, digest=""), worker_threads=1)
        device.empty = self._empty
        return device


def check(source: GraphSource, opening: Opening, provider: str = "cuda") -> None:
    check_fallback(source, provider=provider, try_graph=local_trials(opening))


def fail(_: FloatArray) -> FloatArray:
    raise ModelFailed("zero rows")


def no_number(found: FloatArray) -> FloatArray:
    return np.full_like(found, np.nan)


def other(found: FloatArray) -> FloatArray:
    return found * np.float32(1.01)


def test_trial_batches_leave_each_class_of_lengths_empty(source: GraphSource) -> None:
    every = set(range(len(WIDTHS) + 1))

    for output in source.outputs:
        found = [classes(batch) for batch in trial_batches(source) if batch.output is output]
        assert every in found
        assert set().union(*(every - each for each in found)) == every


@pytest.mark.parametrize("provider", ["cuda", "tensorrt"])
def test_a_graph_for_cpus_alone_is_logged_at_every_start_and_tried_once(
    source: GraphSource, provider: str, caplog: pytest.LogCaptureFixture
) -> None:
    opening = Opening()

    for start in range(1, 3):
        with caplog.at_level(logging.WARNING):
            check(source, opening, provider)
        assert len(caplog.records) == start
        assert opening.opened == 1
    assert all("no graph for this device" in record.message for record in caplog.records)


@pytest.mark.parametrize(
    ("empty", "reason"), [(fail, "zero rows"), (no_number, "by inf"), (other, "by 0.01")]
)
def test_a_device_that_fails_on_an_empty_class_is_not_given_the_graph(
    source: GraphSource, empty: Callable[[FloatArray], FloatArray], reason: str
) -> None:
    with pytest.raises(ModelProblem, match=rf"`cuda`.*{reason}.*models import"):
        check(source, Opening(empty))

    assert not source.path.with_name(RECORD).exists()


@pytest.mark.parametrize("fails", [False, True])
def test_a_graph_that_only_the_device_can_run_has_to_answer_numbers(
    source: GraphSource, *, fails: bool
) -> None:
    """As a packed one, which somebody serves as `model.onnx`."""
    graph = pooled_bert(SHAPE, seeded_weights(SHAPE, seed=3), GraphOptions(attention="packed"))
    source.path.write_bytes(graph.SerializeToString())
    expanded = source.path.with_name("expanded.onnx")
    expanded.write_bytes(expand(graph).SerializeToString())
    opening = Opening(no_number if fails else None)

    def try_graph(given: GraphSource, batches: Sequence[PaddedBatch]) -> GraphTrial:
        return local_trials(opening)(msgspec.structs.replace(given, path=expanded), batches)

    with pytest.raises(ModelProblem, match="by inf") if fails else nullcontext():
        check_fallback(source, provider="cuda", try_graph=try_graph)


@pytest.mark.parametrize("provider", ["cpu", "openvino"])
def test_a_device_that_is_a_cpu_runs_its_graph_untried(
    source: GraphSource, provider: str, caplog: pytest.LogCaptureFixture
) -> None:
    opening = Opening(fail)

    check(source, opening, provider)

    assert opening.opened == 0
    assert not caplog.records
