"""Runs a graph a few times before it serves, to detect a graph that cannot run."""

import itertools
from collections.abc import Callable

from sluicegate.backends.errors import ModelFailed, ModelProblem
from sluicegate.backends.executors.base import ModelExecutor
from sluicegate.backends.executors.cost import CostModel, measure_cost
from sluicegate.backends.executors.graph import GraphSource
from sluicegate.backends.executors.padded_batch import ones

_TRIAL = 4
# Longer rows would add seconds to every start.
_LONGEST_TRIAL = 2048


def open_cost(
    executor: ModelExecutor, source: GraphSource, clock: Callable[[], float]
) -> CostModel:
    """Run trials and return the measured cost, or return the known cost of a graph that has passed.

    Raises:
        ModelProblem: see `run_trials`.
    """
    if source.costs is not None:
        return source.costs.cost
    run_trials(executor, source)
    return measure_cost(source, executor.run, clock)


def run_trials(executor: ModelExecutor, source: GraphSource) -> None:
    """Compute each output once for a short row and once for the longest row.

    The long row has at most 2,048 tokens. These runs also allocate memory, so that no caller has to
    wait for the allocation.

    Raises:
        ModelProblem: a run fails, or the width of an output is not `dimensions`.
    """
    lengths = {_TRIAL, min(source.max_tokens or _TRIAL, _LONGEST_TRIAL)}
    for output, length in itertools.product(source.outputs, sorted(lengths)):
        try:
            result = executor.run(ones(1, length, output))
        except ModelFailed as error:
            raise ModelProblem(
                f"{source.path}: a trial run of {length} tokens failed: {error}"
            ) from error
        if result.shape[-1] != (width := source.width(output, length)):
            raise ModelProblem(
                f"{source.path}: output `{source.outputs[output]}` is {result.shape[-1]} wide for "
                f"{length} tokens, but `model.yaml` says {width}"
            )
