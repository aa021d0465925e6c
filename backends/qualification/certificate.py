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
    """Holds expected answers, of one `output`: a model is checked against them when loaded."""

    expected: list[list[float]]
    output: OutputKind = OutputKind.POOLED


def answer(
    executor: ModelExecutor, encode: Encode, output: OutputKind = OutputKind.POOLED
) -> list[list[float]]:
    """Return a variant's output for a few texts, each run alone; outputs of tokens are joined."""
    return [_run(executor, row, output).round(_DECIMALS).tolist() for row in encode(ORDINARY)]


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
    found = [_run(executor, row, certificate.output) for row in encode(ORDINARY)]
    expected = [np.array(numbers, dtype=np.float32) for numbers in certificate.expected]
    if all(len(numbers) == 1 for numbers in expected):
        # A single number has no direction: those of all texts together have one.
        found, expected = [np.concatenate(found)], [np.concatenate(expected)]
    for here, there in zip(found, expected, strict=False):
        cosine = _cosine(here, there)
        if not cosine >= _LEAST_COSINE:
            raise ModelProblem(
                f"{folder}: it answers otherwise than where it was judged (cosine {cosine:.3f}); "
                "this CPU may lack 8-bit dot products: tune on this kind of machine"
            )


def _run(executor: ModelExecutor, row: IntArray, output: OutputKind) -> FloatArray:
    result: FloatArray = executor.run(pad([row[:_TOKENS]], output))[0]
    return result.ravel()


def _cosine(one: FloatArray, other: FloatArray) -> float:
    if one.shape != other.shape:
        return 0.0
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))
