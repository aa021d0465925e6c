"""Cuts the output of a batch into that of its rows."""

import numpy as np

from backends.errors import BackendError, ModelFailed
from backends.types import FloatArray, OutputKind


def split(
    output: FloatArray, lengths: list[int], kind: OutputKind
) -> list["FloatArray | BackendError"]:
    """Cut a batch's output into rows that outlive it; a row that is not finite has failed."""
    finite = np.isfinite(output).all()
    values: list[FloatArray | BackendError] = []
    for place, length in enumerate(lengths):
        value = output[place] if kind is OutputKind.POOLED else output[place, :length]
        if not finite and not np.isfinite(value).all():
            values.append(ModelFailed("the model's answer for this row is not finite"))
            continue
        value = value.copy()
        value.flags.writeable = False
        values.append(value)
    return values
