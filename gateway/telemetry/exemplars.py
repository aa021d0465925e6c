"""Stores an exemplar (a traced request) for each latency bucket, in a file beside the metrics.

The metrics library does not support exemplars for several processes. Each worker therefore writes
its exemplars to its own file, and the operators' listener shows the newest exemplar of each bucket.
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

from sluicegate.wire.durations import SECONDS

METRIC: Final = "sluicegate_request_duration_seconds"
_BOUNDS: Final[list[str]] = [
    floatToGoString(bound)  # type: ignore[no-untyped-call]
    for bound in (*SECONDS, inf)
]
_MAX_EXEMPLARS: Final = 2000
_OLDEST: Final = 900.0
"""Exemplars older than this many seconds are not shown."""
Key = tuple[str, str, str, str]
"""Identifies a bucket: the route, the model, the outcome, and the bucket's upper bound."""


class StoredExemplar(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Holds the trace id and duration of a request. `time` is in seconds since 1970."""

    key: Key
    trace: str
    duration: float
    time: float


class ExemplarFile:
    """Holds this process's exemplars, and writes them to `folder` if there is one."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._newest: dict[Key, StoredExemplar] = {}
        self._has_changed = False

    def add(self, labels: tuple[str, str, str], duration: float, trace: str) -> None:
        """Store a request as the newest exemplar of its bucket.

        `labels` are the labels of the latency metric.
        """
        key = (*labels, _BOUNDS[bisect_left(SECONDS, duration)])
        if len(self._newest) < _MAX_EXEMPLARS or key in self._newest:
            now = time.time()  # noqa: TID251 - shown beside other machines' times
            self._newest[key] = StoredExemplar(key=key, trace=trace, duration=duration, time=now)
            self._has_changed = True

    def publish(self) -> None:
        """Write the file if an exemplar has changed. Called about once a second."""
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
    """Return the newest exemplar of each bucket, and delete old files."""
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
    """Return `metrics` with the exemplars in `folder` attached to their buckets."""
    shown = list(metrics)
    exemplars = read_exemplars(folder)
    for metric in shown:
        if metric.name != METRIC:
            continue
        for place, sample in enumerate(metric.samples):
            labels = sample.labels
            if "le" not in labels:
                continue
            # The files of an older version, which had other labels, are still read for a while.
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
