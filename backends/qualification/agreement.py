"""Compares a server that runs one of our graphs with the graph run here."""

import numpy as np

from backends.errors import BackendError, ModelProblem
from backends.executors.base import ModelExecutor
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
        ids = row[None, :_MOST_TOKENS]
        given = {"ids": ids, "mask": np.ones_like(ids), "type_ids": np.zeros_like(ids)}
        for output in candidate.outputs:
            expected = here.run(**given, output=output)
            try:
                found = there.run(**given, output=output)
            except BackendError as error:
                raise ModelProblem(f"{candidate.folder}: a trial row failed: {error}") from error
            apart = float(np.abs(found - expected).max()) / (float(np.abs(expected).max()) or 1.0)
            if not apart <= tolerance:
                raise ModelProblem(
                    f"{candidate.folder}: the server runs another graph: its answers are "
                    f"{apart:.2g} of the largest value apart, and `{candidate.profile}` explains "
                    f"{tolerance:g}; give it this one, or describe its own with an `upstream`"
                )
