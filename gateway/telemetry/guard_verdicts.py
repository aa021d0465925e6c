"""Declares the metrics of guards, and what an answer adds to them."""

from collections.abc import Sequence
from typing import Final

import msgspec

from sluicegate.gateway.telemetry.guard_decisions import GuardDecision
from sluicegate.wire.metric_declaration import Series, counter

TEXTS: Final = counter(
    "sluicegate_guard_texts_total",
    "Texts that a guard judged. A text that grows counts each time.",
    "guard",
    "verdict",
)
FINDINGS: Final = counter(
    "sluicegate_guard_findings_total",
    "Findings of a guard's detectors. `action` is what the detector asks for, `flag` through "
    "Presidio's API.",
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
Counts = tuple[tuple[Series, int], ...]
"""Series, and the amount that one answer adds to each."""


class GuardVerdicts(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what an answer adds to metrics, and one of its decisions of each verdict."""

    counts: Counts
    name: str = ""
    """The name of the guard."""
    decisions: Sequence[GuardDecision] = ()
