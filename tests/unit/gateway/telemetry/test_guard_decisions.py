"""Sampled decisions are few, and have texts only of tenants that agree to it."""

from typing import Any

import pytest

from sluicegate.gateway.telemetry.guard_decisions import (
    MOST_DECISIONS,
    GuardDecision,
    RecentDecisions,
)
from sluicegate.wire.guards import DetectorScores, GuardConfig, Verdict
from tests.support.clock import Clock
from tests.support.guards import guard

_ANGER = {"kind": "classifier", "name": "anger", "model": "mood", "labels": {"angry": 0.9}}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def kept(clock: Clock) -> RecentDecisions:
    return RecentDecisions(clock)


def angry(**changes: Any) -> GuardConfig:
    return guard(detectors=[_ANGER | changes])


def add(
    kept: RecentDecisions,
    text: str = "a",
    *,
    verdict: Verdict = "block",
    name: str = "chat",
    config: GuardConfig | None = None,
    tenant: str = "acme",
    **fields: Any,
) -> None:
    decision = GuardDecision(verdict=verdict, text=text, **fields)
    kept.add(name, config or angry(), [(verdict, lambda: decision)], tenant)


def texts(kept: RecentDecisions) -> list[str]:
    return [one.text for one in kept.statistics()["chat"].decisions]


def test_the_last_decisions_of_each_verdict_are_kept(kept: RecentDecisions, clock: Clock) -> None:
    kept.follow(["chat"], ["acme"])
    add(kept, "rare", verdict="allow")
    for number in range(100):
        add(kept, str(number))
        clock.now += 1

    found = texts(kept)

    assert found == ["rare", *map(str, range(100 - MOST_DECISIONS, 100))]


def test_one_more_decision_is_taken_each_second(kept: RecentDecisions, clock: Clock) -> None:
    kept.follow(["chat"], ["acme"])
    for number in range(1000):
        add(kept, str(number))
        clock.now += 0.01

    found = texts(kept)

    assert len(found) == MOST_DECISIONS
    assert found[:21] == [str(number) for number in range(9, 30)]


def test_decisions_of_sixteen_guards_are_kept(kept: RecentDecisions) -> None:
    for number in range(20):
        add(kept, name=f"g{number}")

    assert list(kept.statistics()) == [f"g{number}" for number in range(4, 20)]


def test_a_tenant_that_no_longer_agrees_has_no_text(kept: RecentDecisions) -> None:
    kept.follow(["chat"], ["acme", "beta"])
    add(kept, "of acme")
    add(kept, "of beta", tenant="beta")
    add(kept, "of others", tenant="other")
    before = texts(kept)

    kept.follow(["chat"], ["beta"])
    add(kept, "more of acme")

    assert before == ["of acme", "of beta", ""]
    assert texts(kept) == ["", "of beta", "", ""]


def test_a_guard_that_was_removed_has_no_decisions(kept: RecentDecisions) -> None:
    add(kept)

    kept.follow([], [])

    assert kept.statistics() == {}


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({"labels": {"angry": 0.1}, "action": "flag"}, 2),
        ({"labels": {"sad": 0.9}}, 1),
        ({"model": "other"}, 1),
        ({"expected": {"angry": 0.1}, "labels": {}}, 1),
    ],
)
def test_only_changes_of_thresholds_and_actions_keep_decisions(
    kept: RecentDecisions, changes: dict[str, Any], count: int
) -> None:
    add(kept)

    add(kept, config=angry(**changes))

    assert len(texts(kept)) == count


def test_many_scores_are_not_kept(kept: RecentDecisions) -> None:
    for most in (32, 33):
        best = {f"l{number}": 0.5 for number in range(most)}
        add(kept, scores={"anger": DetectorScores(best)})

    few, many = kept.statistics()["chat"].decisions

    assert few.scores is not None
    assert many.scores is None
