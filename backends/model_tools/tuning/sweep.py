"""Measures a graph on this machine with different batch sizes, threads and clients."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle

import msgspec
import numpy as np

from sluicegate.backends.errors import ModelFailed
from sluicegate.backends.executors.base import ModelExecutor
from sluicegate.backends.qualification.text_runs import TextBatch, make_batches
from sluicegate.backends.types import Encoding, OutputKind, Text

# A CPU gains nothing from larger batches. A GPU needs hundreds of short rows.
_SIZES_CPU, _SIZES_DEVICE = (1, 2, 4, 8, 16, 32), (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
CLIENTS = (1, 2, 4, 8, 16, 32, 64)
_ROUNDS = 3
# A batch with nearly the best throughput is preferred if it is smaller, because it ends sooner.
_NEARLY = 0.97


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """Holds one setting and its measurements.

    `p95` is the 95th percentile of the time of a batch or, with clients, of a response.
    """

    batch_size: int
    threads: int
    clients: int = 0
    rows_per_second: float
    p95: float


# Sends one text as the client with this number, and returns the result.
SendText = Callable[[Text, int], Awaitable[object]]


def batch_sizes(provider: str, rows: Sequence[Encoding], *, max_tokens: int) -> list[int]:
    """Return the batch sizes to measure; a batch of rows of usual length must fit `max_tokens`."""
    sizes = _SIZES_CPU if provider.startswith("CPU") else _SIZES_DEVICE
    usual = max(1, int(np.median([len(row.ids) for row in rows])))
    return [size for size in sizes if size == 1 or size * usual <= max_tokens]


def thread_counts(most: int) -> list[int]:
    """Return 1, 2, 4, ... below `most`, and `most` itself."""
    counts = [1]
    while counts[-1] * 2 < most:
        counts.append(counts[-1] * 2)
    return sorted({*counts, most})


def sweep_batches(
    executor: ModelExecutor,
    rows: Sequence[Encoding],
    *,
    output: OutputKind,
    sizes: Sequence[int],
    threads: Sequence[int],
    seconds: float,
) -> list[Point]:
    """Run batches for every combination of size and number of threads, `seconds` for each.

    The settings are measured in turns, so that other load on the machine affects all settings
    alike. A size is left out if the device has too little memory for it, or if the graph refuses
    it.
    """
    found: dict[tuple[int, int], list[Point]] = {}
    left = list(sizes)
    for _ in range(_ROUNDS):
        for count in threads:
            for size in list(left):
                batches = make_batches(rows, size=size, output=output)
                try:
                    point = _measure(
                        executor, batches, size=size, threads=count, seconds=seconds / _ROUNDS
                    )
                except ModelFailed:
                    if size == min(sizes):
                        raise
                    left = [smaller for smaller in left if smaller < size]
                    break
                found.setdefault((count, size), []).append(point)
    return [_median(points) for (_, size), points in found.items() if size in left]


def choose(points: Sequence[Point]) -> Point:
    """Return the fastest point, or a point that is nearly as fast and has smaller batches."""
    most = max(point.rows_per_second for point in points)
    good = [point for point in points if point.rows_per_second >= _NEARLY * most]
    return min(good, key=lambda point: (point.batch_size, -point.rows_per_second))


async def sweep_clients(
    send: SendText,
    texts: Sequence[Text],
    *,
    clients: Sequence[int],
    best: Point,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Point]:
    """Measure each number of clients for `seconds`; a client sends one text after another."""
    rounds = [
        [
            await _measure_clients(
                send, texts, count=count, best=best, seconds=seconds / _ROUNDS, clock=clock
            )
            for count in clients
        ]
        for _ in range(_ROUNDS)
    ]
    return [_median(points) for points in zip(*rounds, strict=True)]


def _median(points: Sequence[Point]) -> Point:
    return msgspec.structs.replace(
        points[0],
        rows_per_second=float(np.median([point.rows_per_second for point in points])),
        p95=float(np.median([point.p95 for point in points])),
    )


def _measure(
    executor: ModelExecutor,
    batches: Sequence[TextBatch],
    *,
    size: int,
    threads: int,
    seconds: float,
) -> Point:
    # A random order, so that a short measurement has batches of all lengths.
    order = np.random.default_rng(0).permutation(len(batches))
    source = cycle([batches[place] for place in order])
    lock = threading.Lock()
    took: list[float] = []
    done = 0
    started = time.perf_counter()

    def worker() -> None:
        nonlocal done
        ended = started
        while ended - started < seconds:
            begun = time.perf_counter()
            with lock:
                batch = next(source)
            executor.run(batch.padded)
            ended = time.perf_counter()
            with lock:
                took.append(ended - begun)
                done += len(batch.places)

    with ThreadPoolExecutor(threads) as pool:
        for future in [pool.submit(worker) for _ in range(threads)]:
            future.result()
    rate = done / (time.perf_counter() - started)
    p95 = float(np.quantile(took, 0.95))
    return Point(batch_size=size, threads=threads, rows_per_second=rate, p95=p95)


async def _measure_clients(
    send: SendText,
    texts: Sequence[Text],
    *,
    count: int,
    best: Point,
    seconds: float,
    clock: Callable[[], float],
) -> Point:
    source = cycle(texts)
    took: list[float] = []
    started = clock()

    async def client(number: int) -> None:
        ended = started
        while ended - started < seconds:
            begun = clock()
            await send(next(source), number)
            ended = clock()
            took.append(ended - begun)

    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(client(number))
    return msgspec.structs.replace(
        best,
        clients=count,
        rows_per_second=len(took) / (clock() - started),
        p95=float(np.quantile(took, 0.95)),
    )
