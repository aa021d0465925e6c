"""Checks that an upstream server runs the same graph that this backend has in its repository."""

import numpy as np

from sluicegate.backends.errors import BackendError, ModelProblem
from sluicegate.backends.executors.base import ModelExecutor
from sluicegate.backends.executors.padded_batch import pad
from sluicegate.backends.qualification.invariance import ORDINARY, OUTLIERS
from sluicegate.backends.qualification.qualify import TOLERANCES, Candidate

_MOST_TOKENS = 48


def check_agreement(candidate: Candidate, there: ModelExecutor, here: ModelExecutor) -> None:
    """Run a few rows one by one on the server and locally, and compare the outputs.

    Raises:
        ModelProblem: the outputs differ by more than the precision allows, or the server fails on
            a row.
    """
    tolerance = TOLERANCES.get(candidate.precision, TOLERANCES["fp32"])
    for row in candidate.encode(ORDINARY + OUTLIERS):
        for output in candidate.outputs:
            batch = pad([row[:_MOST_TOKENS]], output)
            expected = here.run(batch)
            try:
                found = there.run(batch)
            except BackendError as error:
                raise ModelProblem(f"{candidate.folder}: a trial row failed: {error}") from error
            apart = float(np.abs(found - expected).max()) / (float(np.abs(expected).max()) or 1.0)
            if not apart <= tolerance:
                raise ModelProblem(
                    f"{candidate.folder}: the server seems to run another graph: its outputs "
                    f"differ by {apart:.2g} of the largest value, but `{candidate.precision}` "
                    f"allows {tolerance:g}; give the server this graph, or describe the "
                    "server's own graph with an `upstream`"
                )
