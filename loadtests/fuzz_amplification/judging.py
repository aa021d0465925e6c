"""Judges a run: blocked event loops, slow hits of other callers, exceeded bounds, failures."""

import re
from collections.abc import Iterator, Mapping

import msgspec

MOST_LOOP_DELAY = 0.1
MOST_HIT_P99 = 0.05
_DELAYS = re.compile(
    r"^sluicegate_(backend_)?event_loop_(lag|held)_seconds_bucket"
    r'\{le="([^"]+)"(?:,role="gateway")?\} (\S+)',
    re.MULTILINE,
)
_FAULTS = (0, 500, 502)


class Observed(msgspec.Struct, kw_only=True):
    """The result of a run; times are in seconds, sizes in bytes."""

    statuses: dict[tuple[str, int], int] = {}
    """Answers by kind of request and status; 0 means that the connection ended."""
    hits: list[float] = []
    """The latencies of another customer's hits during the run."""
    calm_hits: list[float] = []
    """The latencies of the same customer's hits before the run, on the same machine."""
    late_timers: dict[str, int] = {}
    """How many timers of event loops were later than allowed, by `gateway` and `backend`."""
    calm_late_timers: dict[str, int] = {}
    """How many timers were later than allowed before the run."""
    held_timers: dict[str, int] = {}
    """How many timers were later than allowed, not counting time without a processor core."""
    memory: dict[str, int] = {}
    """The largest resident memory of each process during the run."""
    bounds: dict[str, int] = {}
    """How much memory each process may have."""
    replaced: list[str] = []
    largest_expansion: tuple[int, str] = (0, "none")
    """The largest ratio of an answer's bytes to its request's bytes, and the kind of request."""
    largest_answer: tuple[int, str] = (0, "none")

    def add_answer(self, kind: str, status: int, *, sent: int, received: int) -> None:
        """Add an answer to the counts."""
        name = (kind, status)
        self.statuses[name] = self.statuses.get(name, 0) + 1
        self.largest_answer = max(self.largest_answer, (received, kind))
        self.largest_expansion = max(self.largest_expansion, (received // max(sent, 1), kind))

    def add(self, other: "Observed") -> None:
        """Add the answers that `other` has counted."""
        for name, number in other.statuses.items():
            self.statuses[name] = self.statuses.get(name, 0) + number
        self.largest_answer = max(self.largest_answer, other.largest_answer)
        self.largest_expansion = max(self.largest_expansion, other.largest_expansion)


def findings(observed: Observed) -> Iterator[str]:
    """Yield the faults of a run."""
    yield from (
        f"{held} times the event loop of a {role} was held for more than 100 ms"
        for role, held in observed.held_timers.items()
        if held
    )
    if observed.hits and (slow := p99(observed.hits)) > MOST_HIT_P99:
        yield f"the p99 of another customer's hits was {slow * 1e3:.1f} ms"
    for name, most in sorted(observed.memory.items()):
        bound = observed.bounds.get(name, 0)
        if bound and most > bound:
            yield f"{name} took {most:,} bytes; its bound is {bound:,}"
    for name in observed.replaced:
        yield f"{name} was replaced"
    for (kind, status), count in sorted(observed.statuses.items()):
        if status in _FAULTS:
            yield f"{count} requests ({kind}) ended with {status}"


def p99(times: list[float]) -> float:
    """Return the 99th percentile of `times`."""
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]


def late_timers(before: str, after: str, kind: str) -> dict[str, int]:
    """Return how many timers of each role were later than allowed between two scrapes of metrics.

    With the kind `held`, the time during which the loop's thread waited for a core does not count.
    """
    return {
        role: _late(_counts(after, kind, role)) - _late(_counts(before, kind, role))
        for role in ("gateway", "backend")
    }


def _late(counts: Mapping[float, float]) -> int:
    in_time = max((edge for edge in counts if edge <= MOST_LOOP_DELAY), default=0.0)
    return int(counts.get(float("inf"), 0) - counts.get(in_time, 0))


def _counts(page: str, kind: str, role: str) -> Mapping[float, float]:
    """Return the count of each bucket, summed over all processes of the role."""
    counts: dict[float, float] = {}
    for prefix, found, edge, count in _DELAYS.findall(page):
        if found == kind and bool(prefix) == (role == "backend"):
            counts[float(edge)] = counts.get(float(edge), 0) + float(count)
    return counts
