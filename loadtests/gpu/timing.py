"""Times work on a device, and samples the device's utilization as backends do."""

import contextlib
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from loadtests.gpu.plan import Options
from loadtests.gpu.results import Measurement
from sluicegate.backends.telemetry.nvml import open_gpus

_INTERVAL = 0.1
_WARM_UP, _LEAST_RUNS = 3, 3
_reader = cache(open_gpus)


@contextlib.contextmanager
def busy_share() -> Iterator[Callable[[], float | None]]:
    """Sample the first device's utilization while entered; yield a function that returns the mean.

    The mean is `None` if the driver does not report utilization.
    """
    reader, left, samples = _reader(), threading.Event(), list[float]()

    def sample() -> None:
        while not left.wait(_INTERVAL):
            values = [state.utilization for state in reader.read()[:1]]
            samples.extend(value for value in values if value is not None)

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield lambda: round(statistics.mean(samples), 3) if samples else None
    finally:
        left.set()
        thread.join()


def timed(
    options: Options,
    runs: Sequence[Callable[[], object]],
    *,
    rows: float,
    tokens: int | None = None,
    padded: int = 0,
) -> Measurement:
    """Call each function of `runs` repeatedly in its own thread, for a third of the figure's time.

    One call runs `rows` rows with `tokens` real tokens, or `padded` tokens including padding.
    """
    for run in [*runs] * _WARM_UP:
        run()
    until = time.perf_counter() + options.seconds / 3

    def repeat(run: Callable[[], object]) -> list[float]:
        spans: list[float] = []
        while len(spans) < _LEAST_RUNS or time.perf_counter() < until:
            started = time.perf_counter()
            run()
            spans.append(time.perf_counter() - started)
        return spans

    started = time.perf_counter()
    with busy_share() as busy, ThreadPoolExecutor(len(runs)) as pool:
        spans = [span for each in pool.map(repeat, runs) for span in each]
        took = time.perf_counter() - started
    # With one run in flight, the median ignores runs that something disturbed.
    span = statistics.median(spans) if len(runs) == 1 else took / len(spans)
    return Measurement(
        rate=rows / span,
        tokens_per_second=None if tokens is None else tokens / span,
        busy=busy(),
        waste=round(1 - tokens / padded, 3) if tokens and padded else None,
        p50=statistics.median(spans),
    )
