"""Reads the answers of a run, a line each, and counts them by time."""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Self

import msgspec
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

_REFUSED = (429, 503)


class Samples(msgspec.Struct, frozen=True, kw_only=True):
    """The answers of a run, in the order in which requests were sent.

    `sent` counts seconds from the begin of the load, `latency` seconds from when a request was to
    be sent. A request without an answer has status 0.
    """

    began: float
    """Seconds since 1970."""
    sent: Floats
    latency: Floats
    status: Ints
    template: Ints
    tenant: Ints
    cache: tuple[str, ...]
    """How the cache had it: `h`it, `p`artly, `s`tale, `m`iss, or nothing."""
    has_retry: Bools
    """Whether the answer said when to come back."""

    @classmethod
    def parse(cls, lines: Iterable[str]) -> Self:
        """Return the answers of lines that `script.js` printed."""
        began = 0.0
        rows: list[list[str]] = []
        for line in lines:
            fields = line.rstrip("\n").split(",")
            if fields[0] == "began":
                began = float(fields[1]) / 1000
            elif len(fields) == 7:
                rows.append(fields)
        rows.sort(key=lambda row: int(row[0]))
        columns = list(zip(*rows, strict=True)) if rows else [()] * 7
        sent, latency, status, template, tenant, cache, retry = columns
        return cls(
            began=began,
            sent=np.array(sent, dtype=np.float64) / 1000 - began,
            latency=np.array(latency, dtype=np.float64) / 1000,
            status=np.array(status, dtype=np.int64),
            template=np.array(template, dtype=np.int64),
            tenant=np.array(tenant, dtype=np.int64),
            cache=tuple(cache),
            has_retry=np.array(retry, dtype=np.int64) == 1,
        )

    def __len__(self) -> int:
        return len(self.sent)

    def select(self, chosen: Bools) -> "Samples":
        """Return some of the answers."""
        return Samples(
            began=self.began,
            sent=self.sent[chosen],
            latency=self.latency[chosen],
            status=self.status[chosen],
            template=self.template[chosen],
            tenant=self.tenant[chosen],
            cache=tuple(self.cache[index] for index in np.flatnonzero(chosen)),
            has_retry=self.has_retry[chosen],
        )

    def between(self, begin: float, end: float) -> "Samples":
        """Return the answers to requests that were sent in a span of time."""
        return self.select((self.sent >= begin) & (self.sent < end))

    @property
    def ended(self) -> Floats:
        """When each answer was there."""
        return self.sent + self.latency

    def good(self, deadline: float) -> Bools:
        """Return which are 200 within the deadline."""
        found: Bools = (self.status == 200) & (self.latency <= deadline)
        return found

    @property
    def refused(self) -> Bools:
        """Which are 429 or 503 and say when to come back."""
        return np.isin(self.status, _REFUSED) & self.has_retry

    @property
    def errors(self) -> Bools:
        """Which are neither 200 nor a refusal."""
        found: Bools = (self.status != 200) & ~self.refused
        return found

    @property
    def hits(self) -> Bools:
        """Which the cache had as a whole."""
        return np.array([one in "hs" and one != "" for one in self.cache], dtype=np.bool_)

    def codes(self) -> Mapping[str, Bools]:
        """Return which answers have each code; refusals without `Retry-After` are apart."""
        found: dict[str, Bools] = {}
        for status in sorted(set(self.status.tolist())):
            chosen = self.status == status
            name = str(status) if status else "no answer"
            if status not in _REFUSED:
                found[name] = chosen
                continue
            found[name] = chosen & self.has_retry
            found[f"{name} without Retry-After"] = chosen & ~self.has_retry
        return {name: chosen for name, chosen in found.items() if chosen.any()}


def per_second(times: Floats, seconds: float) -> Floats:
    """Return how many of `times` are in each whole second; a part of one would look like a loss."""
    edges = np.arange(max(1, int(seconds)) + 1, dtype=np.float64)
    return np.histogram(times, bins=edges)[0].astype(np.float64)


def percentile(latencies: Floats, share: float) -> float:
    """Return the latency that `share` of the answers did not exceed, 0 if there is none."""
    return float(np.quantile(latencies, share, method="higher")) if len(latencies) else 0.0


def percentile_per_second(samples: Samples, share: float, seconds: float) -> Floats:
    """Return a percentile of the latency of what was sent in each second, or NaN."""
    order = np.argsort(samples.sent, kind="stable")
    cuts = np.searchsorted(samples.sent[order], np.arange(max(1, int(seconds)) + 1))
    parts = (samples.latency[order][a:b] for a, b in pairwise(cuts))
    return np.array([percentile(part, share) if len(part) else np.nan for part in parts])


def least_rate(times: Floats, begin: float, end: float, window: float) -> float:
    """Return the least rate of events over any window that lies between two times."""
    width = min(window, end - begin)
    starts = np.arange(begin, end - width + 1e-9, 0.1)
    order = np.sort(times)
    counts = np.searchsorted(order, starts + width) - np.searchsorted(order, starts)
    return float(counts.min()) / width
