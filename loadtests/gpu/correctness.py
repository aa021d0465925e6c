"""Checks that a device computes correctly.

It checks every kind of graph, mixed lengths, NaN, too little memory, and two processes that use the
device at the same time.
"""

import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadtests.gpu.models import Batch, batch_of, graph, short
from loadtests.gpu.plan import (
    CANDIDATES,
    CHECKED_ONLY,
    LARGE,
    PLAIN,
    REFERENCE,
    SMALL,
    Candidate,
    Options,
    checked,
)
from loadtests.gpu.results import Measurement, Measuring, Report
from loadtests.gpu.sessions import BareSession, distance, judged, open_bare, run_on_cpu
from sluicegate.backends.errors import OutOfMemory
from sluicegate.backends.executors.buckets import Shape
from sluicegate.backends.executors.cuda import explain
from sluicegate.backends.model_tools.graphs.weights import WeightsError
from sluicegate.backends.types import FloatArray

# An arena that has room for the weights and a small batch, but not for the large batch.
_SMALL_ARENA = 512 * 1024 * 1024
_LARGE_BATCH, _LARGE_BATCH_OF_A_CPU = Shape(2048, 512), Shape(64, 32)
_BESIDE_SECONDS = 2.0
# If a family has no graph of a kind, the check says so.
_OTHER_FORMS = ("packed", "heads", "ranges", "gathered", "plain")
_SAFE = next(each for each in CANDIDATES if each.name == "fp16-heads")


class _Case(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A batch, its fp32 outputs from a CPU, and a mask of the rows whose outputs are not NaN."""

    batch: Batch
    expected: FloatArray
    answered: NDArray[np.bool_]


def figures(options: Options, _section: str, _report: Report) -> Iterator[Measuring]:
    """Compare each graph's outputs with the CPU's outputs; exhaust memory; use two processes.

    BERT is checked in two sizes, because their attention heads differ in width.
    """
    forms = (*CANDIDATES, *CHECKED_ONLY)
    other = [each for each in forms if each.form.attention in _OTHER_FORMS and not each.kernels]
    for model in (SMALL, LARGE):
        for each in forms:
            yield checked(model, each), partial(_compare, options, model, each)
    yield "out of memory", partial(_run_out_of_memory, options)
    yield "two processes on one device", partial(_run_two_processes, options)
    for family in ("modernbert", "deberta-v2"):
        for each in other:
            yield checked(family, each), partial(_compare, options, family, each)


def _compare(options: Options, family: str, candidate: Candidate) -> Measurement:
    """Compare the outputs of one graph with the CPU's outputs, for every batch."""
    try:
        session = _open(options, family, candidate)
    except WeightsError as error:
        return Measurement(note=f"there is no such form: {error}")
    worst = max(_worst(session, case) for case in _cases(options, family))
    return judged(worst, candidate)


def _open(options: Options, family: str, candidate: Candidate, **changes: Any) -> BareSession:
    return open_bare(options, family, candidate, short(options, family), **changes)


def _worst(session: BareSession, case: _Case) -> float:
    run = session.bind(case.batch)
    # Run twice, since reused memory must not change the answer.
    return max(_apart(run(), case) for _ in range(2))


def _apart(found: FloatArray, case: _Case) -> float:
    """Return the distance between found and expected outputs.

    The distance is infinite if a row that must be NaN is a number.
    """
    if np.isfinite(found[~case.answered]).all(axis=1).any():
        return float("inf")
    return distance(found[case.answered], case.expected[case.answered])


@cache
def _cases(options: Options, family: str) -> list[_Case]:
    size = short(options, family)
    path = graph(options, family, PLAIN.form, size)
    return [
        _Case(
            batch=batch,
            expected=run_on_cpu(path, batch),
            answered=~(batch["input_ids"] == size.vocab - 1).any(axis=1),
        )
        for batch in _batches(size.vocab, longest=48 if options.tiny else 256)
    ]


def _batches(vocabulary: int, *, longest: int) -> Iterator[Batch]:
    """Yield batches: lengths as in real texts, equal lengths, one row, and a row with NaN.

    In a `gathered` graph, a batch of equal lengths leaves all length classes except one empty.
    """
    random = np.random.default_rng(3)
    mixed = np.clip(random.lognormal(np.log(longest / 4), 0.8, 15), 3, longest).astype(np.int64)
    for lengths in ([longest, *mixed], [longest] * 8, [5] * 12, [7]):
        yield batch_of(np.array(lengths), vocabulary, random)
    poisoned = batch_of(np.array([9, longest, 9, 30, 9]), vocabulary, random)
    poisoned["input_ids"][2, 4] = vocabulary - 1
    yield poisoned


def _run_out_of_memory(options: Options) -> Measurement:
    """Run a batch that needs far more memory than the arena has, then a small batch again."""
    is_bounded = options.provider != "cpu"
    session = _open(options, SMALL, REFERENCE, memory_bytes=_SMALL_ARENA)
    shape = _LARGE_BATCH if is_bounded else _LARGE_BATCH_OF_A_CPU
    lengths = np.full(shape.rows, shape.length)
    large = batch_of(lengths, short(options, SMALL).vocab, np.random.default_rng(5))
    refused = _is_refused(session.bind(large))
    worst = _worst(session, _cases(options, SMALL)[0])
    if refused != is_bounded:
        note = f"a batch of {shape.rows}x{shape.length} was{' ' if refused else ' not '}refused"
        return Measurement(error=worst, passed=False, note=note)
    note = "a small batch is right afterwards" if is_bounded else "a CPU's memory has no bound"
    return judged(worst, REFERENCE, note)


def _is_refused(run: Callable[[], FloatArray]) -> bool:
    try:
        run()
    except Exception as error:  # ONNX Runtime's errors have no more specific base
        if isinstance(explain(error), OutOfMemory):
            return True
        raise
    return False


def _run_two_processes(options: Options) -> Measurement:
    """Compare outputs while two processes use the device at the same time."""
    candidate = REFERENCE if options.provider == "cpu" else _SAFE
    for each in (PLAIN, candidate):
        graph(options, SMALL, each.form, short(options, SMALL))  # before both processes need it
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        found = [pool.submit(_compare_for_a_while, options, candidate) for _ in range(2)]
        (one, its_runs), (other, other_runs) = (each.result() for each in found)
    note = f"{candidate.name}, {its_runs} and {other_runs} runs"
    return judged(max(one, other), candidate, note)


def _compare_for_a_while(options: Options, candidate: Candidate) -> tuple[float, int]:
    """Run a batch again and again; return the largest distance and the number of runs."""
    case = _cases(options, SMALL)[0]
    run = _open(options, SMALL, candidate, memory_bytes=_SMALL_ARENA).bind(case.batch)
    worst, runs = 0.0, 0
    until = time.perf_counter() + (0.1 if options.tiny else _BESIDE_SECONDS)
    while runs == 0 or time.perf_counter() < until:
        worst = max(worst, _apart(run(), case))
        runs += 1
    return worst, runs
