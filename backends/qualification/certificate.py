"""Checks that a variant has the same outputs on this machine as where it was accepted.

A variant is a model in another precision. Its certificate holds the outputs that it had on the
machine where it was accepted. Without a check, an int8 graph may silently overflow on a CPU that
lacks instructions of that machine's CPU.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from sluicegate.backends.errors import ModelProblem
from sluicegate.backends.executors.base import ModelExecutor
from sluicegate.backends.executors.padded_batch import pad
from sluicegate.backends.qualification.invariance import ORDINARY
from sluicegate.backends.types import FloatArray, IntArray, OutputKind

FILE = "precision.json"
_DECIMALS = 4
# So few tokens that no model truncates the texts.
_TOKENS = 12
# Rounding in other kernels changes the fifth decimal of a cosine; an overflow changes the first.
_LEAST_COSINE = 0.99

Encode = Callable[[Sequence[str]], list[IntArray]]


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the outputs that a variant must have when it is loaded."""

    expected: list[list[float]]
    output: OutputKind = OutputKind.POOLED


def certified_outputs(
    executor: ModelExecutor, encode: Encode, output: OutputKind = OutputKind.POOLED
) -> list[list[float]]:
    """Return a variant's output for a few texts, each run alone; token vectors are concatenated."""
    return [_run(executor, row, output).round(_DECIMALS).tolist() for row in encode(ORDINARY)]


def check_certificate(folder: Path, executor: ModelExecutor, encode: Encode) -> None:
    """Compare a variant's outputs with its certificate, if it has a certificate.

    Raises:
        ModelProblem: the outputs differ, or the certificate cannot be read.
    """
    try:
        certificate = msgspec.json.decode((folder / FILE).read_bytes(), type=Certificate)
    except FileNotFoundError:
        return
    except (OSError, msgspec.DecodeError) as error:
        raise ModelProblem(f"{folder / FILE}: cannot be read as a certificate: {error}") from None
    found = [_run(executor, row, certificate.output) for row in encode(ORDINARY)]
    expected = [np.array(numbers, dtype=np.float32) for numbers in certificate.expected]
    if all(len(numbers) == 1 for numbers in expected):
        # A single number has no direction, so compare one vector of the numbers of all texts.
        found, expected = [np.concatenate(found)], [np.concatenate(expected)]
    for here, there in zip(found, expected, strict=False):
        cosine = _cosine(here, there)
        if not cosine >= _LEAST_COSINE:
            raise ModelProblem(
                f"{folder}: the outputs differ from the accepted ones (cosine {cosine:.3f}); "
                "this CPU may lack 8-bit dot products; run `models tune` on this kind of machine"
            )


def _run(executor: ModelExecutor, row: IntArray, output: OutputKind) -> FloatArray:
    result: FloatArray = executor.run(pad([row[:_TOKENS]], output))[0]
    return result.ravel()


def _cosine(one: FloatArray, other: FloatArray) -> float:
    if one.shape != other.shape:
        return 0.0
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))
