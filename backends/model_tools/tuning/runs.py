"""Runs texts through a graph in batches of like length, and measures the time."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import msgspec
import numpy as np

from backends.executors.base import ModelExecutor
from backends.executors.padded_batch import PaddedBatch, pad
from backends.types import FloatArray, IntArray, OutputKind

# Eight rows of like length cost a CPU the least per row.
_ROWS = 8


class TextBatch(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Holds the rows of some texts, for a pooled output, and the indices of the texts."""

    places: list[int]
    padded: PaddedBatch


def make_batches(rows: Sequence[IntArray], *, size: int = _ROWS) -> list[TextBatch]:
    """Return the rows in batches of like length, shortest first."""
    order = iter(sorted(range(len(rows)), key=lambda place: len(rows[place])))
    batches = []
    while places := list(islice(order, size)):
        padded = pad([rows[place] for place in places], OutputKind.POOLED)
        batches.append(TextBatch(places=places, padded=padded))
    return batches


def pooled(executor: ModelExecutor, batches: Sequence[TextBatch]) -> FloatArray:
    """Return the pooled vector of every text, on all worker threads of the executor."""
    vectors = np.zeros((sum(len(b.places) for b in batches), executor.dimensions), np.float32)

    def keep(batch: TextBatch) -> None:
        vectors[batch.places] = executor.run(batch.padded)

    _run_all(batches, executor.worker_threads, keep)
    return vectors


def rows_per_second(executor: ModelExecutor, batches: Sequence[TextBatch]) -> float:
    """Return how many rows all worker threads together run in a second."""
    started = time.perf_counter()
    _run_all(batches, executor.worker_threads, lambda batch: executor.run(batch.padded))
    rows = sum(len(batch.places) for batch in batches)
    return rows / (time.perf_counter() - started)


def compare_speed(
    first: ModelExecutor, second: ModelExecutor, batches: Sequence[TextBatch], *, rounds: int = 5
) -> tuple[float, float]:
    """Return the rows a second of both: medians of rounds in turns, on the same busy machine."""
    speeds = [
        (rows_per_second(first, batches), rows_per_second(second, batches)) for _ in range(rounds)
    ]
    one, other = np.median(np.array(speeds), axis=0)
    return float(one), float(other)


def _run_all(
    batches: Sequence[TextBatch], worker_threads: int, work: Callable[[TextBatch], object]
) -> None:
    """Do `work` on every batch, in `worker_threads` threads; the first error of one is raised."""
    with ThreadPoolExecutor(worker_threads) as pool:
        for _ in pool.map(work, batches):
            pass
