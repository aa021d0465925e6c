"""Compares a server that runs one of our graphs with the graph run here."""

import numpy as np

from backends.errors import BackendError, ModelProblem
from backends.executors.base import ModelExecutor
from backends.executors.padded_batch import pad
from backends.qualification.invariance import ORDINARY, OUTLIERS
from backends.qualification.qualify import TOLERANCES, Candidate

_MOST_TOKENS = 48


def check_agreement(candidate: Candidate, there: ModelExecutor, here: ModelExecutor) -> None:
    """Compare the outputs for a few rows, each alone.

    Raises:
        ModelProblem: they differ by more than the precision explains, so that the server runs
            another graph, or it does not run them all.
    """
    tolerance = TOLERANCES.get(candidate.profile, TOLERANCES["fp32"])
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
                    f"{candidate.folder}: the server runs another graph: its answers are "
                    f"{apart:.2g} of the largest value apart, and `{candidate.profile}` explains "
                    f"{tolerance:g}; give it this one, or describe its own with an `upstream`"
                )
