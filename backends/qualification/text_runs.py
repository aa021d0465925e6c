"""Runs texts through a graph in batches of similar length, and measures the time."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import msgspec
import numpy as np

from sluicegate.backends.executors.base import ModelExecutor
from sluicegate.backends.executors.padded_batch import PaddedBatch, pad
from sluicegate.backends.types import Encoding, FloatArray, IntArray, OutputKind

_TURNS = 11
# The third smallest ratio of eleven rounds is a lower bound of the median with a certainty of 97 %,
# because by the binomial distribution, two or fewer ratios are below the median in 67 of 2,048
# cases.
_LOWER = 2


class TextBatch(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Holds a padded batch, and the indices of its texts."""

    places: list[int]
    padded: PaddedBatch


class SpeedSample(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a graph's throughput in rows a second, and the 95th percentile of batch durations."""

    rows_per_second: float
    p95: float


class Speedup(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the ratio of two throughputs, and its lower bound with a certainty of 97 %."""

    before: SpeedSample
    after: SpeedSample
    ratio: float
    at_least: float


def make_batches(
    rows: Sequence[Encoding], *, size: int = 8, output: OutputKind = OutputKind.POOLED
) -> list[TextBatch]:
    """Return batches of rows of similar length, shortest rows first."""
    order = iter(sorted(range(len(rows)), key=lambda place: len(rows[place].ids)))
    batches = []
    while places := list(islice(order, size)):
        padded = pad([rows[place].ids for place in places], output)
        for number, place in enumerate(places):
            types = rows[place].type_ids
            if types is not None:
                padded.type_ids[number, : len(types)] = types
        batches.append(TextBatch(places=places, padded=padded))
    return batches


def run_texts(
    executor: ModelExecutor, batches: Sequence[TextBatch], *, trim: tuple[int, int] = (0, 0)
) -> tuple[FloatArray, IntArray]:
    """Return the output vectors of all texts in order, and the text index of each vector.

    A text has one vector, or one vector for each token. `trim` says how many tokens to leave out at
    the beginning and at the end of a text. All worker threads of the executor are used.
    """
    found: list[FloatArray] = [np.zeros((0, executor.dimensions), np.float32)] * _texts(batches)
    before, after = trim

    def keep(batch: TextBatch) -> None:
        lengths = batch.padded.mask.sum(axis=1)
        by_token = batch.padded.output is OutputKind.TOKENS
        for place, length, lines in zip(
            batch.places, lengths, executor.run(batch.padded), strict=True
        ):
            found[place] = lines[before : length - after] if by_token else lines[None, :]

    _run_all(batches, executor.worker_threads, keep)
    owners = np.repeat(np.arange(len(found)), [len(lines) for lines in found])
    return np.concatenate(found), owners.astype(np.int32)


def measure_speed(executor: ModelExecutor, batches: Sequence[TextBatch]) -> SpeedSample:
    """Return how fast all worker threads together run the batches."""
    took: list[float] = []

    def run(batch: TextBatch) -> None:
        begun = time.perf_counter()
        executor.run(batch.padded)
        took.append(time.perf_counter() - begun)

    started = time.perf_counter()
    _run_all(batches, executor.worker_threads, run)
    rate = _texts(batches) / (time.perf_counter() - started)
    return SpeedSample(rows_per_second=rate, p95=float(np.quantile(took, 0.95)))


def compare_speed(
    first: ModelExecutor, second: ModelExecutor, batches: Sequence[TextBatch]
) -> Speedup:
    """Return the speed of `second` relative to `first`.

    In each of eleven rounds, both run all batches, and their order alternates.
    """
    turns = []
    for turn in range(_TURNS):
        # The order alternates, so that a machine that slows down favours neither executor.
        order = (first, second) if turn % 2 else (second, first)
        samples = [measure_speed(executor, batches) for executor in order]
        turns.append(samples if turn % 2 else samples[::-1])
    return summarize_turns(turns)


def summarize_turns(turns: Sequence[Sequence[SpeedSample]]) -> Speedup:
    """Return the speedup over eleven rounds.

    Each round has a sample of the first executor and a sample of the second.
    """
    ratios = sorted(after.rows_per_second / before.rows_per_second for before, after in turns)
    before, after = (_median(samples) for samples in zip(*turns, strict=True))
    return Speedup(
        before=before, after=after, ratio=float(np.median(ratios)), at_least=ratios[_LOWER]
    )


def _median(samples: Sequence[SpeedSample]) -> SpeedSample:
    return SpeedSample(
        rows_per_second=float(np.median([sample.rows_per_second for sample in samples])),
        p95=float(np.median([sample.p95 for sample in samples])),
    )


def _texts(batches: Sequence[TextBatch]) -> int:
    return sum(len(batch.places) for batch in batches)


def _run_all(
    batches: Sequence[TextBatch], worker_threads: int, work: Callable[[TextBatch], object]
) -> None:
    """Call `work` for every batch in `worker_threads` threads, and raise the first error."""
    with ThreadPoolExecutor(worker_threads) as pool:
        for _ in pool.map(work, batches):
            pass
