"""Keeps a sample of a worker's decisions of guards. Texts are kept only of tenants that agreed."""

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import sha256
from itertools import islice
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
"""The decisions that a worker keeps of each verdict of a guard, and of its errors."""
MOST_CHARACTERS: Final = 500
"""The code points of a text that are kept."""
_MOST_GUARDS: Final = 16
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
    completely."""
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
    def __init__(self, subjects: dict[str, str]) -> None:
        self.subjects = subjects
        self.by_kind: dict[str, deque[GuardDecision]] = {}
        self.taken: dict[str, float] = {}


class RecentDecisions:
    """Keeps some decisions of the document's guards: of each verdict, and of errors.

    When it has enough of a kind, it takes at most one more each second. `clock` returns the Unix
    time in seconds. Not thread-safe.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.time,  # noqa: TID251 - shown
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._monotonic = monotonic
        self._with_text: Collection[str] = ()
        self._kept: dict[str, _Kept] = {}
        self.guards: Mapping[str, GuardConfig] = {}
        """The guards of the document. Decisions of the first 16 are kept."""
        self.changed: set[str] = set()
        """The guards whose decisions have changed, or that were removed."""

    def follow(self, guards: Mapping[str, GuardConfig], with_text: Collection[str]) -> None:
        """Forget the decisions of other `guards`, and texts of tenants not in `with_text`."""
        self.guards, self._with_text = guards, with_text
        former, self._kept = self._kept, {}
        for name, guard in islice(guards.items(), _MOST_GUARDS):
            subjects = subjects_of(guard)
            kept = former.get(name)
            if kept is None or kept.subjects != subjects:
                kept = _Kept(subjects)
            self._kept[name] = kept
            for decisions in kept.by_kind.values():
                for place, one in enumerate(decisions):
                    if one.tenant not in with_text:
                        decisions[place] = replace(one, text="")
        self.changed |= former.keys() | self._kept.keys()

    def prepared(
        self,
        decisions: Sequence[GuardDecision],
        of: Mapping[str, GuardConfig],
        tenant: str,
        *,
        texts: bool,
    ) -> list[GuardDecision]:
        """Return decisions about a request of `tenant` that may be kept, with permitted `texts`.

        There are none if the guards `of` an earlier document decided.
        """
        if of is not self.guards:
            return []
        shown = texts and tenant in self._with_text
        return [replace(one, tenant=tenant, text=one.text if shown else "") for one in decisions]

    def add(self, name: str, decisions: Sequence[GuardDecision]) -> None:
        """Keep decisions that `prepared` has returned."""
        kept = self._kept.get(name)
        if kept is None:
            return
        now = self._monotonic()
        for one in decisions:
            kind = "error" if one.error else one.verdict
            others = kept.by_kind.setdefault(kind, deque(maxlen=MOST_DECISIONS))
            if len(others) == MOST_DECISIONS and now - kept.taken[kind] < _PAUSE:
                continue
            kept.taken[kind] = now
            others.append(replace(one, time=self._clock()))
            self.changed.add(name)

    def of(self, name: str) -> KeptDecisions | None:
        """Return the decisions of a guard, in any order, or `None` if there are none."""
        kept = self._kept.get(name)
        if kept is None or not kept.by_kind:
            return None
        found = [each for decisions in kept.by_kind.values() for each in decisions]
        return KeptDecisions(kept.subjects, found)


def subjects_of(guard: GuardConfig) -> dict[str, str]:
    """Return a digest of what each detector looks for, without names, thresholds and actions."""
    common = sha256(_encode((guard.model, guard.allow, guard.overlap)))
    found = {}
    for each in guard.detectors:
        digest = common.copy()
        digest.update(_encode(_subject(each)))
        found[each.name] = digest.hexdigest()[:16]
    return found


def _subject(detector: AnyDetector) -> AnyDetector:
    nameless = replace(detector, name="", action="block")
    if isinstance(nameless, ExampleDetector):
        return replace(nameless, threshold=0.0)
    labels = thresholds_of(nameless)
    return replace(nameless, labels=dict.fromkeys(labels, 0.0)) if labels else nameless


def key_of(worker: str) -> bytes:
    """Return the key of a hash in the cache Redis: a worker's decisions by the guard's name."""
    return _KEY + worker.encode()
