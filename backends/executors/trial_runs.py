"""Runs a graph once before it serves, so that what cannot answer is found before it is served."""

import itertools

from backends.errors import ModelFailed, ModelProblem
from backends.executors.base import ModelExecutor
from backends.executors.graph import GraphSource
from backends.executors.padded_batch import ones

_TRIAL = 4
# A longer row would take seconds at every start.
_LONGEST_TRIAL = 2048


def run_trials(executor: ModelExecutor, source: GraphSource) -> None:
    """Run a short row and the longest, for each output.

    The memory of a run is allocated then, too, and not while somebody waits.

    Raises:
        ModelProblem: one fails, or an output is not as wide as declared.
    """
    lengths = {_TRIAL, min(source.max_tokens or _TRIAL, _LONGEST_TRIAL)}
    for output, length in itertools.product(source.outputs, sorted(lengths)):
        try:
            result = executor.run(ones(1, length, output))
        except ModelFailed as error:
            raise ModelProblem(
                f"{source.path}: a trial run of {length} tokens failed: {error}"
            ) from error
        if result.shape[-1] != source.dimensions:
            raise ModelProblem(
                f"{source.path}: output `{source.outputs[output]}` is "
                f"{result.shape[-1]} wide, not `dimensions: {source.dimensions}`"
            )
