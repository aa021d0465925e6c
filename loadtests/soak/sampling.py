"""Samples resources of processes and folders and fits whether they still grow."""

import statistics
from collections.abc import Sequence
from pathlib import Path

import msgspec

_KIB = 1024


class ProcessSample(msgspec.Struct, frozen=True, kw_only=True):
    """The resources of a process at `at` seconds of the run; resident `memory` in bytes."""

    at: float
    memory: int
    files: int
    threads: int


class Trend(msgspec.Struct, frozen=True, kw_only=True):
    """A figure after warm-up: its median, and the rise of its fitted line."""

    median: float
    rise: float

    def is_flat(self, *, share: float, beside: float) -> bool:
        """Whether it rises by at most `share` of the median and the amount `beside`."""
        return self.rise <= share * self.median + beside


def sample(pid: int, at: float) -> ProcessSample | None:
    """Return a sample of a process, `None` if it has ended."""
    folder = Path("/proc") / str(pid)
    try:
        lines = (folder / "status").read_text().splitlines()
        files = sum(1 for _ in (folder / "fd").iterdir())
    except OSError:
        return None
    fields = {name: rest.split() for name, _, rest in (line.partition(":") for line in lines)}
    if "VmRSS" not in fields:  # it has ended and waits to be collected
        return None
    memory = int(fields["VmRSS"][0]) * _KIB
    return ProcessSample(at=at, memory=memory, files=files, threads=int(fields["Threads"][0]))


def size_of(folder: Path) -> int:
    """Return the disk use of the files below `folder`, in bytes."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:  # deleted meanwhile
            continue
    return total


def trend(points: Sequence[tuple[float, float]], *, warm_after: float) -> Trend:
    """Fit `points` (times and figures) after `warm_after` by least squares."""
    warm = [point for point in points if point[0] >= warm_after]
    times, figures = [at for at, _ in warm], [figure for _, figure in warm]
    if len(warm) < 3:
        return Trend(median=statistics.median(figures) if figures else 0.0, rise=0.0)
    slope, _ = statistics.linear_regression(times, figures)
    return Trend(median=statistics.median(figures), rise=slope * (times[-1] - times[0]))
