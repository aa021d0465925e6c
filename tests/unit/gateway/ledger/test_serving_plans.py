"""Plans of how models are served: versions that grow, no change that is lost, an audit of each."""

from collections.abc import Iterator

import msgspec
import pytest

from sluicegate.gateway.errors import Conflict
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.ledger.types import StoredPlan
from sluicegate.wire.plans import Serving, ServingPlans, Shadow
from tests.support.ledgers import Clock

FIRST = Serving(revisions={"1": 90, "2": 10}, shadow=Shadow(revision="3", share=5))
SECOND = Serving(revisions={"2": 1})


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(database: str, clock: Clock) -> Iterator[Ledger]:
    with Ledger.create(database, clock=clock) as opened:
        yield opened


def change(ledger: Ledger, model: str, plan: Serving | None) -> StoredPlan:
    before = ledger.plans.plan(model)
    wanted = msgspec.structs.replace(before, plan=plan, previous=before.plan)
    return ledger.plans.change(model, wanted, actor="admin", action="models.split", detail={})


def test_without_a_change_there_is_no_plan(ledger: Ledger) -> None:
    assert ledger.plans.load() == ServingPlans()
    assert ledger.plans.plan("mood") == StoredPlan()


def test_a_plan_is_read_as_it_was_written_with_the_one_before(ledger: Ledger) -> None:
    first = change(ledger, "mood", FIRST)
    second = change(ledger, "mood", SECOND)

    assert ledger.plans.plan("mood") == second
    assert (second.plan, second.previous) == (SECOND, FIRST)
    assert second.version > first.version
    assert ledger.plans.load() == ServingPlans(version=second.version, plans={"mood": SECOND})
    assert [entry.subject for entry in ledger.audit.entries()] == ["mood", "mood"]


def test_a_model_whose_folder_decides_again_has_no_plan_and_the_version_grows(
    ledger: Ledger,
) -> None:
    before = change(ledger, "mood", FIRST)
    after = change(ledger, "mood", None)

    assert ledger.plans.load() == ServingPlans(version=after.version)
    assert after.version > before.version


def test_a_change_of_what_somebody_else_changed_meanwhile_is_refused(ledger: Ledger) -> None:
    seen = ledger.plans.plan("mood")
    change(ledger, "mood", FIRST)

    with pytest.raises(Conflict, match="`mood`"):
        ledger.plans.change(
            "mood",
            msgspec.structs.replace(seen, plan=SECOND),
            actor="admin",
            action="models.split",
            detail={},
        )

    assert ledger.plans.plan("mood").plan == FIRST
    assert len(ledger.audit.entries()) == 1
