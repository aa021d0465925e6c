"""Decides whether a GPU computes an fp32 graph in fp16.

A GPU has fast matrix products only in fp16 and TF32. TF32 keeps the range of fp32, but fp16 does
not. So the effect of fp16 is measured: the outputs of about a thousand texts are compared with fp32
outputs of this machine's CPU. A revision can have its own texts in `texts.txt`.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from sluicegate.backends.errors import ExecutorDied, StartProblem
from sluicegate.backends.executors.base import ModelExecutor
from sluicegate.backends.executors.graph import GraphSource
from sluicegate.backends.executors.onnx import OnnxExecutor
from sluicegate.backends.executors.opening import OpenExecutor
from sluicegate.backends.executors.pooling import PoolingExecutor
from sluicegate.backends.qualification.gate import Bounds, judge
from sluicegate.backends.qualification.golden_texts import GoldenSet, default_texts, read_golden
from sluicegate.backends.qualification.measures import kind_of, rank_scores
from sluicegate.backends.qualification.records import machine_key, read_record, write_record
from sluicegate.backends.qualification.text_runs import make_batches, run_texts
from sluicegate.backends.repository.manifest import (
    ClassifierManifest,
    EncoderManifest,
    GraphManifest,
)
from sluicegate.backends.types import Encoding, FloatArray, IntArray, OutputKind, Text
from sluicegate.wire.cores import usable_cores

_log = logging.getLogger(__name__)
RECORD = ".fp16.json"
TEXTS = "texts.txt"
# Part of the record's key. Increase it when the way to judge changes.
_METHOD = "2"
_TEXTS = 1024
_ROWS = 64


class HalfVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Holds why fp16 was refused; fp16 is accepted if `reasons` is empty."""

    reasons: list[str] = []


class HalfSubject(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Describes a model whose precision is to be chosen.

    `source` is the model's graph. `encode` turns texts into rows. `trim` counts the special tokens
    before and after a text.
    """

    folder: Path
    digest: str
    manifest: GraphManifest
    source: GraphSource
    encode: Callable[[Sequence[Text]], list[Encoding]]
    trim: tuple[int, int]


def read_verdict(
    subject: HalfSubject, file: str, provider: str, *, open_executor: OpenExecutor
) -> HalfVerdict:
    """Return the recorded verdict on the fp16 graph `file`; judge it if no verdict is recorded.

    Raises:
        BackendError: a run failed.
        StartProblem: a graph cannot be opened, or there is no text to judge by.
    """
    path = subject.folder / RECORD
    key = machine_key(_METHOD, subject.digest, provider, file)
    verdict = read_record(path, key, HalfVerdict)
    if verdict is not None:
        return verdict
    try:
        verdict = HalfVerdict(reasons=_judge(subject, file, open_executor=open_executor))
    except ExecutorDied:
        # The process that replaces this one must not try the graph again.
        write_record(path, key, HalfVerdict(reasons=[f"`{file}` broke the device"]))
        raise
    write_record(path, key, verdict)
    said = {"model": str(subject.folder), "graph": file, "why": verdict.reasons}
    _log.info("fp16 is refused" if verdict.reasons else "fp16 is accepted", extra=said)
    return verdict


def _judge(subject: HalfSubject, file: str, *, open_executor: OpenExecutor) -> list[str]:
    """Return the reasons to refuse an fp16 graph's outputs; empty if the outputs are accepted.

    Raises:
        BackendError: a run failed.
        StartProblem: a graph cannot be opened, or there is no text to judge by.
    """
    alone = msgspec.structs.replace(subject.source, digest="")
    half = msgspec.structs.replace(
        subject.source, precision="fp16", path=subject.source.path.with_name(file)
    )
    golden, rows = _read_texts(subject)
    # Use half of the cores, because other models may be served meanwhile.
    threads = max(1, usable_cores() // 2)
    reference = OnnxExecutor(alone, worker_threads=threads, wide=False)
    candidate = open_executor(half)
    before, owners = _outputs(subject, reference, rows)
    after, _ = _outputs(subject, candidate, rows)
    measure, _ = kind_of(subject.manifest)
    return judge(
        before,
        after,
        bounds=Bounds(),
        multi_label=getattr(subject.manifest, "function", "") == "sigmoid",
        measure=measure,
        owners=owners if golden.groups is None else np.array(golden.groups, dtype=np.int32),
    ).reasons


def _read_texts(subject: HalfSubject) -> tuple[GoldenSet, list[Encoding]]:
    """Return the texts by which the graph is judged, as the model reads them, and their rows.

    Raises:
        StartProblem: the revision's file cannot be read, or the model can read none of its texts.
    """
    own = subject.folder / TEXTS
    golden = read_golden(own) if own.exists() else GoldenSet(texts=[*default_texts(_TEXTS)])
    measure, reads_pairs = kind_of(subject.manifest)
    golden = golden.suited_to(measure, reads_pairs=reads_pairs)
    prompt = ""
    if isinstance(subject.manifest, EncoderManifest):
        prompt = subject.manifest.prompt
    rows = subject.encode([prompt + t if isinstance(t, str) else t for t in golden.texts])
    read = [n for n, row in enumerate(rows) if len(row.ids) <= subject.manifest.max_tokens]
    if not read:
        raise StartProblem(f"`{own}`: every text is too long for the model; add shorter texts")
    return golden.take(read), [rows[place] for place in read]


def _outputs(
    subject: HalfSubject, executor: ModelExecutor, rows: Sequence[Encoding]
) -> tuple[FloatArray, IntArray]:
    """Return the lines of output to compare, and for each line the index of its row."""
    manifest, output = subject.manifest, subject.source.first_output
    if isinstance(manifest, EncoderManifest) and manifest.pooling is not None:
        executor, output = PoolingExecutor(executor, manifest.pooling), OutputKind.POOLED
    batches = make_batches(rows, size=_ROWS, output=output)
    found, owners = run_texts(executor, batches, trim=subject.trim)
    if isinstance(manifest, ClassifierManifest):
        measure, _ = kind_of(manifest)
        return (rank_scores(found) if measure == "order" else found), owners
    # An encoder without a pooled output is judged by the mean of its token vectors.
    starts = np.flatnonzero(np.diff(owners, prepend=-1))
    counts = np.diff(starts, append=len(owners)).astype(np.float32)
    means = (np.add.reduceat(found, starts, axis=0) / counts[:, None]).astype(np.float32)
    return means, owners[starts]
