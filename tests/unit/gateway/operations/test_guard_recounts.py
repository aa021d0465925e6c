"""Scores of past texts say what other thresholds would have decided."""

from typing import Any

import pytest
from msgspec.structs import replace

from sluicegate.gateway.operations.guard_recounts import GuardRecount, recount
from sluicegate.gateway.telemetry.guard_decisions import (
    GuardDecision,
    KeptDecisions,
    SeenFinding,
    subjects_of,
)
from sluicegate.wire.guards import DetectorScores, GuardConfig
from tests.support.guards import guard

_WORDS = {"kind": "words", "name": "words", "words": ["film"], "action": "flag"}


def anger(threshold: float, **changes: Any) -> dict[str, Any]:
    detector = {"kind": "classifier", "name": "anger", "model": "mood"}
    return detector | {"labels": {"angry": threshold}} | changes


def guarded(*detectors: dict[str, Any], **changes: Any) -> GuardConfig:
    return guard(detectors=detectors, **changes)


_PRESENT = guarded(anger(0.9), _WORDS)


def scored(*scores: float, **more: DetectorScores) -> list[GuardDecision]:
    """Return decisions about texts with these scores of anger, the oldest at 1 s."""
    return [
        GuardDecision(
            verdict="allow",
            scores={"anger": DetectorScores({"angry": score})} | more,
            time=float(number),
        )
        for number, score in enumerate(scores, 1)
    ]


def recounted(
    proposed: GuardConfig, *decisions: GuardDecision, present: GuardConfig = _PRESENT
) -> GuardRecount:
    return recount(present, proposed, [KeptDecisions(subjects_of(present), list(decisions))])


def counts(**by_verdict: int) -> dict[str, int]:
    return {"allow": 0, "flag": 0, "redact": 0, "block": 0} | by_verdict


@pytest.mark.parametrize(
    ("threshold", "after", "changed"),
    [(0.5, {"block": 3, "allow": 1}, 1), (0.99, {"block": 1, "allow": 3}, 1)],
)
def test_verdicts_of_other_thresholds_are_counted(
    threshold: float, after: dict[str, int], changed: int
) -> None:
    found = recounted(guarded(anger(threshold), _WORDS), *scored(0.1, 0.6, 0.9, 0.999))

    assert (found.decisions, found.since, found.unknown) == (4, 1.0, 0)
    assert found.before == counts(block=2, allow=2)
    assert found.after == counts(**after)
    assert found.changed == changed
    assert (found.detectors["anger"].before, found.detectors["anger"].after) == (2, after["block"])


def test_the_strongest_action_decides() -> None:
    words = DetectorScores({"WORD": 1.0})

    found = recounted(
        guarded(anger(0.95, action="redact"), _WORDS), *scored(0.92, 0.97, words=words)
    )

    assert (found.before, found.after) == (counts(block=2), counts(flag=1, redact=1))
    assert found.detectors["words"].after == 2


def test_a_removed_detector_is_counted_before() -> None:
    found = recounted(guarded(_WORDS), *scored(0.95))

    assert (found.before, found.after) == (counts(block=1), counts(allow=1))
    assert (found.detectors["anger"].before, found.detectors["anger"].after) == (1, 0)


@pytest.mark.parametrize("changes", [{"model": "other"}, {"labels": {"sad": 0.1}}])
def test_detectors_that_look_for_something_else_are_not_counted(changes: dict[str, Any]) -> None:
    new = {"kind": "length", "name": "long", "max_characters": 9}

    found = recounted(guarded(anger(0.1, **changes), _WORDS, new), *scored(0.95))

    assert found.uncounted == ["anger", "long"]
    assert list(found.detectors) == ["words"]
    assert (found.decisions, found.unknown) == (0, 1)


def test_a_text_counts_if_no_unknown_detector_can_change_its_verdict() -> None:
    new = {"kind": "length", "name": "long", "max_characters": 9, "action": "redact"}

    found = recounted(guarded(anger(0.5), new), *scored(0.1, 0.6, 0.95))

    assert (found.before, found.after) == (counts(allow=1, block=1), counts(block=2))
    assert (found.decisions, found.unknown) == (2, 1)


def test_a_change_of_allowed_words_shows_no_verdict_as_unchanged() -> None:
    found = recounted(guarded(anger(0.9), _WORDS, allow=["film"]), *scored(0.95, 0.1))

    assert (found.decisions, found.unknown, found.changed) == (0, 2, 0)
    assert found.uncounted == ["anger", "words"]


def test_a_renamed_detector_keeps_its_scores() -> None:
    found = recounted(guarded(anger(0.5, name="rage"), _WORDS), *scored(0.95, 0.6))

    assert (found.before, found.after) == (counts(allow=1, block=1), counts(block=2))
    assert (found.uncounted, found.detectors["rage"].after) == ([], 2)


def test_detectors_that_look_for_the_same_have_scores_of_their_own() -> None:
    present = guarded(anger(0.5, action="flag"), anger(0.9, name="rage"))
    of_rage = DetectorScores({}, 0.9)

    found = recounted(present, *scored(0.6, rage=of_rage), present=present)

    assert found.after == counts(flag=1)


def test_only_the_newest_revision_of_the_model_is_counted() -> None:
    old, new = scored(0.6, 0.6)

    found = recounted(
        guarded(anger(0.5), _WORDS),
        replace(new, revision="2"),
        replace(old, revision="1"),
    )

    assert (found.decisions, found.since, found.unknown) == (1, 2.0, 1)


def test_scores_below_what_a_detector_learned_are_unknown() -> None:
    unseen = GuardDecision(verdict="allow", scores={"anger": DetectorScores({}, 0.5)})
    without = GuardDecision(verdict="allow")

    known = recounted(guarded(anger(0.6), _WORDS), unseen)
    unknown = recounted(guarded(anger(0.4), _WORDS), unseen, without)

    assert (known.decisions, known.unknown) == (1, 0)
    assert (unknown.decisions, unknown.unknown, unknown.since) == (0, 2, None)


def test_a_text_that_was_not_looked_at_gets_on_error() -> None:
    failed = GuardDecision(verdict="block", error="overloaded", time=1.0)

    found = recounted(guarded(anger(0.9), _WORDS, on_error="allow"), failed)

    assert (found.before, found.after) == (counts(block=1), counts(allow=1))


def test_a_block_that_hides_a_failed_detector_is_unknown() -> None:
    found = SeenFinding(detector="anger", label="angry", score=0.95, length=9)
    partial = GuardDecision(verdict="block", findings=[found], error="overloaded")

    counted = recounted(guarded(anger(0.99), _WORDS, on_error="allow"), partial)

    assert (counted.decisions, counted.unknown) == (0, 1)


def test_decisions_of_an_earlier_guard_are_left_out() -> None:
    kept = [KeptDecisions(subjects_of(guarded(anger(0.9, model="old"))), scored(0.95))]

    assert recount(_PRESENT, guarded(anger(0.5)), kept).decisions == 0
