"""Sampled decisions are few, and have texts only of tenants that agree to it."""

from typing import Any

import pytest

from sluicegate.gateway.telemetry.guard_decisions import (
    MOST_DECISIONS,
    GuardDecision,
    RecentDecisions,
)
from sluicegate.wire.guards import GuardConfig, Verdict
from tests.support.clock import Clock
from tests.support.guards import guard

_ANGER = {"kind": "classifier", "name": "anger", "model": "mood", "labels": {"angry": 0.9}}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def kept(clock: Clock) -> RecentDecisions:
    found = RecentDecisions(lambda: 5.0, clock)
    found.follow({"chat": angry()}, ["acme"])
    return found


def angry(**changes: Any) -> GuardConfig:
    return guard(detectors=[_ANGER | changes])


def add(
    kept: RecentDecisions,
    text: str = "a",
    *,
    verdict: Verdict = "block",
    name: str = "chat",
    tenant: str = "acme",
    permits: bool = True,
    **fields: Any,
) -> None:
    decision = GuardDecision(verdict=verdict, text=text, **fields)
    kept.add(name, kept.prepared([decision], kept.guards, tenant, texts=permits))


def decisions(kept: RecentDecisions) -> list[GuardDecision]:
    found = kept.of("chat")
    return [] if found is None else found.decisions


def texts(kept: RecentDecisions) -> list[str]:
    return [one.text for one in decisions(kept)]


def test_some_decisions_of_each_verdict_and_of_errors_are_kept(
    kept: RecentDecisions, clock: Clock
) -> None:
    add(kept, "rare", verdict="allow")
    add(kept, "failed", error="overloaded")
    for number in range(100):
        add(kept, str(number))
        clock.now += 1

    found = texts(kept)

    assert found == ["rare", "failed", *map(str, range(100 - MOST_DECISIONS, 100))]


def test_one_more_decision_is_taken_each_second_whatever_the_time_of_day(
    kept: RecentDecisions, clock: Clock
) -> None:
    for number in range(1000):
        add(kept, str(number))
        clock.now += 0.01

    found = decisions(kept)

    assert len(found) == MOST_DECISIONS
    assert [one.text for one in found[:21]] == [str(number) for number in range(9, 30)]
    assert {one.time for one in found} == {5.0}


def test_decisions_of_the_first_sixteen_guards_are_kept(kept: RecentDecisions) -> None:
    names = [f"g{number}" for number in range(20)]
    kept.follow(dict.fromkeys(names, angry()), ())
    for name in names:
        add(kept, name=name)

    found = [name for name in names if kept.of(name)]

    assert found == names[:16]


def test_a_tenant_that_no_longer_agrees_has_no_text(kept: RecentDecisions) -> None:
    kept.follow(kept.guards, ["acme", "beta"])
    add(kept, "of acme")
    add(kept, "of beta", tenant="beta")
    add(kept, "of others", tenant="other")
    before = texts(kept)

    kept.follow(kept.guards, ["beta"])
    add(kept, "more of acme")

    assert before == ["of acme", "of beta", ""]
    assert texts(kept) == ["", "of beta", "", ""]


def test_a_text_that_must_not_be_stored_is_not_kept(kept: RecentDecisions) -> None:
    add(kept, permits=False)

    found = texts(kept)

    assert found == [""]


def test_a_guard_that_was_removed_has_no_decisions(kept: RecentDecisions) -> None:
    add(kept)
    kept.changed.clear()

    kept.follow({}, [])
    add(kept)

    assert kept.of("chat") is None
    assert kept.changed == {"chat"}


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

    kept.follow({"chat": angry(**changes)}, ())
    add(kept)

    assert len(texts(kept)) == count
