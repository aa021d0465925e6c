"""Keeps a worker's recent decisions of guards. Texts are kept only of tenants that agreed to it."""

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from hashlib import sha256
from typing import Final

import msgspec
from msgspec.structs import replace

from sluicegate.wire.guards import (
    AnyDetector,
    DetectorScores,
    ExampleDetector,
    GuardConfig,
    Verdict,
    thresholds_of,
)

MOST_DECISIONS: Final = 30
"""The decisions that a worker keeps of each verdict of a guard."""
MOST_CHARACTERS: Final = 500
"""The code points of a text that are kept."""
_MOST_GUARDS: Final = 16
_MOST_SCORES: Final = 32
_PAUSE: Final = 1.0
_KEY: Final = b"sg:decisions:"
_encode = msgspec.msgpack.Encoder(order="sorted").encode


class SeenFinding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A finding without its text."""

    detector: str
    label: str = ""
    score: float = 0.0
    length: int = 0
    """Code points of the span."""


class GuardDecision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a guard decided about a text."""

    verdict: Verdict
    findings: Sequence[SeenFinding] = ()
    """At most three findings."""
    scores: dict[str, DetectorScores] | None = None
    """The best scores of each detector, found or not. `null` if the text could not be looked at
    completely, or if they are more than 32."""
    error: str = ""
    """The code of the error, if the text could not be looked at completely."""
    tenant: str = ""
    time: float = 0.0
    """A Unix time, in seconds."""
    revision: str = ""
    """The revision of the guard's model."""
    length: int = 0
    """Code points of the text."""
    text: str = ""
    """The first 500 code points of the text, if `decisions.texts` of the document names the
    tenant."""


class KeptDecisions(msgspec.Struct, frozen=True):
    """The decisions of a guard that a worker keeps.

    `subjects` says what the guard's detectors looked for, as `subjects_of` does.
    """

    subjects: dict[str, str]
    decisions: list[GuardDecision]


class _Kept:
    def __init__(self, guard: GuardConfig) -> None:
        self.guard = guard
        self.subjects = subjects_of(guard)
        self.by_verdict: dict[str, deque[GuardDecision]] = {}

    def is_of(self, guard: GuardConfig) -> bool:
        """Return whether decisions of `guard` can be compared with the kept ones."""
        if guard is self.guard:
            return True
        self.guard = guard
        return subjects_of(guard) == self.subjects


class RecentDecisions:
    """Keeps the last decisions of each verdict of each guard.

    When it has enough of a verdict, it takes at most one more each second. `clock` returns the Unix
    time in seconds. Not thread-safe.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:  # noqa: TID251 - shown
        self._clock = clock
        self._with_text: Collection[str] = ()
        self._kept: dict[str, _Kept] = {}
        self.changes = 0
        """Grows with each change of what is kept."""

    def follow(self, guards: Collection[str], with_text: Collection[str]) -> None:
        """Forget the decisions of other `guards`, and texts of tenants not in `with_text`."""
        self._with_text = with_text
        self._kept = {name: kept for name, kept in self._kept.items() if name in guards}
        for kept in self._kept.values():
            for verdict, decisions in kept.by_verdict.items():
                left = [self._permitted(each) for each in decisions]
                kept.by_verdict[verdict] = deque(left, MOST_DECISIONS)
        self.changes += 1

    def add(
        self,
        name: str,
        guard: GuardConfig,
        decisions: Sequence[tuple[Verdict, Callable[[], GuardDecision]]],
        tenant: str,
    ) -> None:
        """Keep decisions of a guard about texts of `tenant`."""
        now = self._clock()
        kept = self._kept.get(name)
        if kept is None or not kept.is_of(guard):
            kept = self._kept[name] = _Kept(guard)
            if len(self._kept) > _MOST_GUARDS:
                del self._kept[next(iter(self._kept))]
        for verdict, describe in decisions:
            others = kept.by_verdict.get(verdict)
            if others is None:
                others = kept.by_verdict[verdict] = deque(maxlen=MOST_DECISIONS)
            elif len(others) == MOST_DECISIONS and now - others[-1].time < _PAUSE:
                continue
            found = replace(describe(), tenant=tenant, time=now)
            others.append(self._permitted(_bounded(found)))
            self.changes += 1

    def statistics(self) -> dict[str, KeptDecisions]:
        """Return the decisions of each guard, in any order."""
        return {
            name: KeptDecisions(
                kept.subjects, [each for found in kept.by_verdict.values() for each in found]
            )
            for name, kept in self._kept.items()
        }

    def _permitted(self, decision: GuardDecision) -> GuardDecision:
        if not decision.text or decision.tenant in self._with_text:
            return decision
        return replace(decision, text="")


def _bounded(decision: GuardDecision) -> GuardDecision:
    scores = decision.scores
    if scores is None or sum(len(each.best) for each in scores.values()) <= _MOST_SCORES:
        return decision
    return replace(decision, scores=None)


def subjects_of(guard: GuardConfig) -> dict[str, str]:
    """Return a digest of what each detector looks for, without thresholds and actions."""
    common = (guard.model, guard.allow, guard.overlap)
    return {
        each.name: sha256(_encode((_subject(each), *common))).hexdigest()[:16]
        for each in guard.detectors
    }


def _subject(detector: AnyDetector) -> AnyDetector:
    if isinstance(detector, ExampleDetector):
        return replace(detector, action="block", threshold=0.0)
    if labels := thresholds_of(detector):
        return replace(detector, action="block", labels=dict.fromkeys(labels, 0.0))
    return replace(detector, action="block")


def key_of(worker: str) -> bytes:
    """Return the key in the cache Redis below which a worker stores its decisions."""
    return _KEY + worker.encode()


def newest(kept: Sequence[KeptDecisions]) -> Iterator[GuardDecision]:
    """Yield the decisions of several workers, the newest first."""
    found = [decision for each in kept for decision in each.decisions]
    yield from sorted(found, key=lambda one: -one.time)
