"""Decides at load time whether a model is served, and whether its rows may share batches."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from sluicegate.backends.errors import BackendError, ExecutorDied, ModelFailed, ModelProblem
from sluicegate.backends.executors.base import ModelExecutor
from sluicegate.backends.executors.padded_batch import pad
from sluicegate.backends.qualification.certificate import check_certificate
from sluicegate.backends.qualification.invariance import Invariance, measure_invariance
from sluicegate.backends.qualification.records import machine_key, read_record, write_record
from sluicegate.backends.types import IntArray, OutputKind

_log = logging.getLogger(__name__)
RECORD = ".admitted.json"
# Part of the record's key. Increase it when the way to measure changes.
_METHOD = "3"
_MAX_TOKENS = 48
# By precision: how much padding and other rows may change an output, relative to its largest value.
TOLERANCES = {"fp32": 1e-4, "tf32": 1e-2, "int8": 2e-2, "fp16": 2e-2, "bf16": 1e-1}


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a model whose graph is open but not served yet.

    `last_token` is the token with the highest id in the tokenizer file, and its id. `is_remote` is
    true if an upstream server runs the graph.
    """

    name: str
    folder: Path
    digest: str
    precision: str
    max_tokens: int
    outputs: tuple[OutputKind, ...]
    executor: ModelExecutor
    encode: Callable[[Sequence[str]], list[IntArray]]
    tokenizer: Path
    last_token: tuple[str, int]
    is_remote: bool = False


Qualify = Callable[[Candidate], bool]


def qualify_unmeasured(_: Candidate) -> bool:
    """Return true without measuring, for executors that are known to be batch-invariant."""
    return True


def qualify(candidate: Candidate) -> bool:
    """Return whether rows of different callers may share batches.

    The answer is measured once for each digest and kind of machine. But a model on an upstream
    server is measured at every load, because the server's machine is unknown.

    Raises:
        ModelProblem: padding changes an output by more than the precision allows, as in a graph
            that ignores its attention mask. Or the model is a variant in lower precision, and its
            outputs differ from those recorded when it was accepted.
    """
    provider, precision = candidate.executor.provider, candidate.precision
    key = machine_key(_METHOD, candidate.digest, provider, precision)
    path = candidate.folder / RECORD
    found = None if candidate.is_remote else read_record(path, key, Invariance)
    if found is None:
        found = _measure(candidate)
        if not candidate.is_remote:
            write_record(path, key, found)
    if not found.shares_batches:
        _log.warning(
            "the rows of a model run alone, because its outputs depend on the rows beside them",
            extra={"model": candidate.name, "moved": found.mates},
        )
        return False
    tolerance = TOLERANCES.get(candidate.precision, TOLERANCES["fp32"])
    if not found.shapes <= tolerance:
        raise ModelProblem(
            f"{candidate.folder}: padding changes an output by {found.shapes:.2g} of its largest "
            f"value, but `{candidate.precision}` allows {tolerance:g}; check that the graph uses "
            "`attention_mask`"
        )
    return True


def _measure(candidate: Candidate) -> Invariance:
    if not candidate.is_remote:
        _check_last_token(candidate)
    try:
        check_certificate(candidate.folder, candidate.executor, candidate.encode)
        return measure_invariance(
            candidate.executor,
            outputs=candidate.outputs,
            encode=candidate.encode,
            max_tokens=min(candidate.max_tokens, _MAX_TOKENS),
        )
    except ExecutorDied:
        raise
    except BackendError as error:
        raise ModelProblem(f"{candidate.folder}: a trial batch failed: {error}") from error


def _check_last_token(candidate: Candidate) -> None:
    """Refuse a tokenizer with a token that the graph has no embedding for."""
    token, number = candidate.last_token
    try:
        candidate.executor.run(pad([np.array([number], dtype=np.int32)], candidate.outputs[0]))
    except ModelFailed:
        raise ModelProblem(
            f"{candidate.tokenizer}: the token `{token}` has the id {number}, which has no "
            "embedding; call `model.resize_token_embeddings(len(tokenizer))`, and save both"
        ) from None
