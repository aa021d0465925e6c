"""Keeps a sampled request for each bucket of latencies, in a file beside those of the metrics.

The metrics library has no exemplars where several processes count. Each worker writes its own to
one file; the admin process shows the newest of each bucket.
"""

import os
import time
from bisect import bisect_left
from collections.abc import Iterable
from math import inf
from pathlib import Path
from typing import Final

import msgspec
from prometheus_client.core import Exemplar, Metric
from prometheus_client.utils import floatToGoString

from gateway.telemetry.catalogue import SECONDS

METRIC: Final = "sluicegate_request_duration_seconds"
_BOUNDS: Final[list[str]] = [
    floatToGoString(bound)  # type: ignore[no-untyped-call]
    for bound in (*SECONDS, inf)
]
_MOST: Final = 2000
_OLDEST: Final = 900.0
"""Seconds after which an exemplar says little of the present."""
Key = tuple[str, str, str, str]
"""Route, model, outcome and the upper bound of the bucket."""


class StoredExemplar(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Names a request by its trace; `time` is in seconds since 1970."""

    key: Key
    trace: str
    duration: float
    time: float


class ExemplarFile:
    """Holds the exemplars of this process and writes them to `folder`, if that has room."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._newest: dict[Key, StoredExemplar] = {}
        self._has_changed = False

    def add(self, labels: tuple[str, str, str], duration: float, trace: str) -> None:
        """Keep a request with these labels of the metric as its bucket's newest."""
        key = (*labels, _BOUNDS[bisect_left(SECONDS, duration)])
        if len(self._newest) < _MOST or key in self._newest:
            now = time.time()  # noqa: TID251 - shown beside other machines' times
            self._newest[key] = StoredExemplar(key=key, trace=trace, duration=duration, time=now)
            self._has_changed = True

    def publish(self) -> None:
        """Write the file where anything is new; called about once a second."""
        if self.folder is None or not self._has_changed:
            return
        self._has_changed = False
        path = self.folder / f"exemplars_{os.getpid()}.json"
        temporary = path.with_suffix(".new")
        try:
            temporary.write_bytes(msgspec.json.encode(list(self._newest.values())))
            temporary.replace(path)
        except OSError:  # the disk is full
            return


def read_exemplars(folder: Path) -> dict[Key, StoredExemplar]:
    """Return the newest exemplar of each bucket; files of long ago are deleted."""
    found: dict[Key, StoredExemplar] = {}
    oldest = time.time() - _OLDEST  # noqa: TID251 - as above
    for path in folder.glob("exemplars_*.json"):
        try:
            if path.stat().st_mtime < oldest:
                path.unlink()
                continue
            stored = msgspec.json.decode(path.read_bytes(), type=list[StoredExemplar])
        except (OSError, msgspec.DecodeError):
            continue
        for one in stored:
            if one.time > max(oldest, found[one.key].time if one.key in found else 0.0):
                found[one.key] = one
    return found


def with_exemplars(metrics: Iterable[Metric], folder: Path) -> list[Metric]:
    """Return `metrics` with the exemplars in `folder` at the buckets that they are of."""
    shown = list(metrics)
    exemplars = read_exemplars(folder)
    for metric in shown:
        if metric.name != METRIC:
            continue
        for place, sample in enumerate(metric.samples):
            labels = sample.labels
            if "le" not in labels:
                continue
            # A former version, whose files are read until they are added up, had other labels.
            found = exemplars.get(
                (
                    *(labels.get("route", ""), labels.get("model", "")),
                    *(labels.get("outcome", ""), labels["le"]),
                )
            )
            if found is not None:
                exemplar = Exemplar({"trace_id": found.trace}, found.duration, found.time)
                metric.samples[place] = sample._replace(exemplar=exemplar)
    return shown
