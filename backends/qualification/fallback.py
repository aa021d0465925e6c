"""Checks that a GPU can run a model's graph for CPUs, if the model has no graph for GPUs.

The graph for CPUs groups rows of similar length into classes. A batch may leave a class empty, and
some devices fail on attention over zero rows. So trial batches with every combination of classes
are run first. A GPU may run the graph only if it gives the same outputs as a CPU.
"""

import logging

import msgspec
import numpy as np

from sluicegate.backends.errors import BackendError, ModelProblem, StartProblem
from sluicegate.backends.executors.graph import GraphSource
from sluicegate.backends.executors.padded_batch import PaddedBatch, pad
from sluicegate.backends.qualification.graph_trials import TryGraph, largest_difference, run_on_cpu
from sluicegate.backends.qualification.qualify import TOLERANCES
from sluicegate.backends.qualification.records import machine_key, read_record, write_record
from sluicegate.wire.gpus import GPU_PROVIDERS

_log = logging.getLogger(__name__)
RECORD = ".fallback.json"
# Part of the record's key. Increase it when the trials change.
_METHOD = "1"
# One length of each class. A batch of two rows leaves the third class empty.
LENGTHS = (3, 15, 40)
_BATCHES = ((0, 1, 2), (1, 2), (0, 2), (0, 1), (0,), (1,), (2,))


class FallbackTrial(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the largest difference between outputs of a GPU and a CPU.

    The difference is relative to the largest value.
    """

    moved: float


def check_fallback(source: GraphSource, *, provider: str, try_graph: TryGraph) -> None:
    """Warn that a GPU runs a graph for CPUs, and try the graph.

    A graph is tried once per kind of machine, and again if its digest changes. If this machine's
    CPU cannot run the graph, the GPU's outputs only have to be finite.

    Raises:
        ModelProblem: a trial batch fails on the GPU, or its outputs differ from a CPU's.
    """
    if provider not in GPU_PROVIDERS:
        return
    _log.warning(
        "a model has no graph for this device and may be slow; `sluicegate models import` writes "
        "graphs for GPUs",
        extra={"graph": str(source.path), "provider": provider},
    )
    path = source.path.with_name(RECORD)
    key = machine_key(_METHOD, source.digest, provider, source.precision)
    if read_record(path, key, FallbackTrial) is not None:
        return
    moved = _try(source, provider, try_graph)
    if not moved <= TOLERANCES.get(source.precision, TOLERANCES["fp32"]):
        raise _problem(source, provider, f"its outputs differ from a CPU's by {moved:.2g}")
    write_record(path, key, FallbackTrial(moved=moved))


def trial_batches(source: GraphSource) -> list[PaddedBatch]:
    """Return a batch for each output and each combination of the classes of lengths."""
    longest = source.max_tokens or max(LENGTHS)
    # Small ids, which every model has.
    rows = [1 + np.arange(min(length, longest), dtype=np.int32) for length in LENGTHS]
    return [
        pad([rows[place] for place in places], output)
        for output in source.outputs
        for places in _BATCHES
    ]


def _try(source: GraphSource, provider: str, try_graph: TryGraph) -> float:
    """Return the largest difference between the GPU's and a CPU's outputs.

    The difference is relative to the largest value.
    """
    batches = trial_batches(source)
    try:
        found = try_graph(source, batches).outputs
    except (BackendError, StartProblem) as error:
        raise _problem(source, provider, str(error)) from error
    return largest_difference(run_on_cpu(source, batches) or found, found, batches)


def _problem(source: GraphSource, provider: str, reason: str) -> ModelProblem:
    return ModelProblem(
        f"{source.path}: the model has no graph for `{provider}`, and its graph for CPUs cannot "
        f"run there: {reason}; import the model again with `sluicegate models import`, which "
        "writes graphs for GPUs"
    )
