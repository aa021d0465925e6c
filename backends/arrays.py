"""Reads the arrays of an `.npz` file."""

from pathlib import Path

import numpy as np

from sluicegate.backends.errors import ModelProblem
from sluicegate.backends.types import FloatArray


def read_arrays(path: Path) -> dict[str, FloatArray]:
    """Return the arrays of an `.npz` file by name, in float32.

    Raises:
        ModelProblem: the file is missing, or cannot be read.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return {name: np.asarray(arrays[name], dtype=np.float32) for name in arrays.files}
    except Exception as error:  # a damaged archive raises many types of errors
        raise ModelProblem(f"{path}: cannot be read as arrays (.npz): {error}") from error
