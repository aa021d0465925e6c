"""Reads selected metrics from all processes' files, without building the whole metrics page."""

import math
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import msgspec
from prometheus_client.mmap_dict import MmapedDict

from sluicegate.gateway.telemetry.metric_files import files_held

Labels = tuple[tuple[str, str], ...]
Series = tuple[str, Labels]
"""The name of a series, and its labels sorted by name."""
_ADD_UP: Final[dict[str, Callable[[float, float], float]]] = {
    "counter": float.__add__,
    "histogram": float.__add__,
    "gauge_sum": float.__add__,
    "gauge_livesum": float.__add__,
    "gauge_min": min,
    "gauge_livemin": min,
    "gauge_max": max,
    "gauge_livemax": max,
}
_MAX_KEYS: Final = 200_000


class MetricReader:
    """Reads the metrics `names` from the files in `folder`.

    The counters in `names` are named without their ending `_total`. The values of histogram buckets
    are not cumulative. Not thread-safe.
    """

    def __init__(self, folder: Path, names: Iterable[str]) -> None:
        self._folder = folder
        self._names = frozenset(names)
        # Caches decoded keys, because the same keys are read again and again.
        self._keys: dict[str, Series | None] = {}

    def read(self) -> dict[Series, float]:
        """Return the value of each series. Files that a crash has corrupted are left out."""
        found: dict[Series, float] = {}
        with files_held(self._folder, exclusive=False):
            for path in self._folder.glob("*.db"):
                add_up = _ADD_UP.get(path.stem.rpartition("_")[0])
                if add_up is None:
                    continue
                for key, value in _values(path):
                    series = self._series(key)
                    if series is not None:
                        before = found.get(series)
                        found[series] = value if before is None else add_up(before, value)
        return found

    def _series(self, key: str) -> Series | None:
        """Return the series of a key, or `None` if the key's metric is not in `names`."""
        if key not in self._keys:
            if len(self._keys) >= _MAX_KEYS:
                self._keys.clear()
            metric, sample, labels, _ = msgspec.json.decode(key)
            is_wanted = metric in self._names
            self._keys[key] = (sample, tuple(sorted(labels.items()))) if is_wanted else None
        return self._keys[key]


def _values(path: Path) -> list[tuple[str, float]]:
    try:
        found = MmapedDict.read_all_values_from_file(path)  # type: ignore[no-untyped-call]
        # NaN marks a value that is no longer shown.
        return [(key, value) for key, value, *_ in found if not math.isnan(value)]
    except (OSError, RuntimeError, ValueError, struct.error):
        return []
