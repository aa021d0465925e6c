"""Declares the metrics of guards, and keeps a worker's recent decisions without their texts."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from sluicegate.wire.metric_declaration import Series, counter

TEXTS: Final = counter(
    "sluicegate_guard_texts_total",
    "Texts that a guard judged. A text that grows counts each time.",
    "guard",
    "verdict",
)
FINDINGS: Final = counter(
    "sluicegate_guard_findings_total",
    "Findings of a guard's detectors. `action` is what the detector asks for.",
    *("guard", "detector", "action"),
)
FAILED_TEXTS: Final = counter(
    "sluicegate_guard_failed_texts_total",
    "Texts that a guard could not look at completely. Its `on_error` was their verdict, unless a "
    "detector blocked them.",
    "guard",
)
ROUTED_TEXTS: Final = counter(
    "sluicegate_router_texts_total", "Texts for which a router chose a target.", "router", "target"
)
UNREAD_TEXTS: Final = counter(
    "sluicegate_router_failed_texts_total",
    "Texts that a router could not look at completely. `on_error` or `default` was their target.",
    "router",
)
_MOST_DECISIONS: Final = 20
Counts = tuple[tuple[Series, int], ...]
"""Series, and the amount that one answer adds to each."""


class SeenFinding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A finding without its text."""

    detector: str
    label: str = ""
    score: float = 0.0
    length: int = 0
    """Code points of the span."""


class GuardDecision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a guard decided about a text, without the text."""

    guard: str
    verdict: str
    findings: Sequence[SeenFinding] = ()
    error: str = ""
    """The code of the error, if the text could not be looked at completely."""
    tenant: str = ""
    time: float = 0.0
    """A Unix time, in seconds."""


class GuardVerdicts(msgspec.Struct, frozen=True):
    """Holds what an answer adds to metrics, and up to three of its decisions."""

    counts: Counts
    decisions: Sequence[GuardDecision] = ()


class RecentDecisions:
    """Keeps the last 20 decisions. `clock` returns the Unix time in seconds."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:  # noqa: TID251 - shown
        self._clock = clock
        self._newest: deque[GuardDecision] = deque(maxlen=_MOST_DECISIONS)

    def add(self, decisions: Sequence[GuardDecision], tenant: str) -> None:
        """Keep decisions about texts of `tenant`."""
        now = self._clock()
        for each in decisions:
            self._newest.append(msgspec.structs.replace(each, tenant=tenant, time=now))

    def statistics(self) -> list[GuardDecision]:
        """Return the decisions, oldest first."""
        return list(self._newest)
