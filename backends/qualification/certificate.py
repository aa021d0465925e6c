"""Verifies that an accepted variant still gives the answers that it was accepted with.

An int8 graph may silently overflow on a CPU without the instructions of the one that accepted it.
Its certificate holds its answers there, which are compared with those of this machine.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from backends.errors import ModelProblem
from backends.executors.base import ModelExecutor
from backends.executors.padded_batch import pad
from backends.qualification.invariance import ORDINARY
from backends.types import FloatArray, IntArray, OutputKind

FILE = "precision.json"
_DECIMALS = 4
# Short of what any model reads, so that nothing depends on how longer texts are cut.
_TOKENS = 12
# Rounding of other kernels moves a cosine in the fifth decimal, an overflow in the first.
_LEAST_COSINE = 0.99

Encode = Callable[[Sequence[str]], list[IntArray]]


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the expected answers that a model is checked against when it is loaded."""

    expected: list[list[float]]


def answer(executor: ModelExecutor, encode: Encode) -> list[list[float]]:
    """Return the answers of a variant to a few texts, each alone."""
    return [_pooled(executor, row).round(_DECIMALS).tolist() for row in encode(ORDINARY)]


def check_certificate(folder: Path, executor: ModelExecutor, encode: Encode) -> None:
    """Compare a variant's answers with those of its certificate; other models have none.

    Raises:
        ModelProblem: it answers otherwise here, or its certificate cannot be read.
    """
    try:
        certificate = msgspec.json.decode((folder / FILE).read_bytes(), type=Certificate)
    except FileNotFoundError:
        return
    except (OSError, msgspec.DecodeError) as error:
        raise ModelProblem(f"{folder / FILE}: it is no certificate: {error}") from None
    for row, expected in zip(encode(ORDINARY), certificate.expected, strict=False):
        cosine = _cosine(_pooled(executor, row), np.array(expected, dtype=np.float32))
        if not cosine >= _LEAST_COSINE:
            raise ModelProblem(
                f"{folder}: it answers otherwise than where it was judged (cosine {cosine:.3f}); "
                "this CPU may lack 8-bit dot products: tune on this kind of machine"
            )


def _pooled(executor: ModelExecutor, row: IntArray) -> FloatArray:
    result: FloatArray = executor.run(pad([row[:_TOKENS]], OutputKind.POOLED))[0]
    return result


def _cosine(one: FloatArray, other: FloatArray) -> float:
    if one.shape != other.shape:
        return 0.0
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))
