"""What each revision of a model answered, counted once and priced as usage is."""

from collections.abc import Iterator, Sequence

import msgspec
import pytest

from sluicegate.gateway.config.document import PriceConfig
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.ledger.recording import UnrecordableBlock
from sluicegate.gateway.ledger.usage_marks import HOUR
from sluicegate.gateway.types import RequestEvent, RevisionUsage
from testing.postgresql import PostgreSQL
from tests.support.events import START, make_event
from tests.support.ledgers import Clock, record

PRICES = (
    PriceConfig(model="*", since="2026-01-01", hit=1, computed=10),
    PriceConfig(model="*", since="2026-09-02", hit=2, computed=20),
)
DAY = 24 * HOUR


@pytest.fixture
def ledger(database: str) -> Iterator[Ledger]:
    with Ledger.create(database, clock=Clock()) as opened:
        yield opened


def event(number: int, *arms: RevisionUsage, time: int = START, count: int = 1) -> RequestEvent:
    made = make_event(number, time=time)
    return msgspec.structs.replace(
        made, model="mood", revision="abc", arms=arms, count=count, duration=0.1
    )


def items(ledger: Ledger, prices: Sequence[PriceConfig] = PRICES) -> dict[str, tuple[int, ...]]:
    found = ledger.revision_costs("mood", "abc", prices)
    return {arm.arm: (arm.hit, arm.computed, arm.failed, arm.rows) for arm in found}


def test_each_arm_has_the_items_that_it_answered(ledger: Ledger) -> None:
    one = RevisionUsage(arm="1", computed=2, rows=3, tokens=9)
    shadowed = RevisionUsage(arm="1", shadow="3", computed=1, rows=1)
    two = RevisionUsage(arm="2", hit=1, failed=1)

    record(ledger, "log", 2, [event(1, one, two), event(2, shadowed)])

    assert items(ledger) == {"1": (0, 3, 0, 4), "2": (1, 0, 1, 0)}
    assert ledger.revision_costs("mood", "another") == []


def test_a_run_of_hits_counts_as_many_and_an_event_counts_once(ledger: Ledger) -> None:
    run = event(1, RevisionUsage(arm="2", hit=1), count=5)

    record(ledger, "log", 1, [run])
    record(ledger, "log", 1, [run])
    record(ledger, "copy of the log", 2, [run, event(7, RevisionUsage(arm="2", hit=1))])

    assert items(ledger) == {"2": (6, 0, 0, 0)}


def test_the_cost_follows_the_price_of_each_hour(ledger: Ledger) -> None:
    used = RevisionUsage(arm="1", computed=1)

    record(ledger, "log", 2, [event(1, used), event(2, used, time=START + DAY + 1)])

    (arm,) = ledger.revision_costs("mood", "abc", PRICES)
    assert (arm.cost, arm.currency) == ("0.000000030", "EUR")


@pytest.mark.system
def test_names_that_no_column_can_hold_are_refused_and_not_cut_off(postgresql: PostgreSQL) -> None:
    """Cut off, both would be one revision, which one statement cannot add to twice."""
    arms = [RevisionUsage(arm="a" * 64 + end, hit=1) for end in "bc"]
    with Ledger.create(postgresql.database(), clock=Clock()) as ledger:
        for answered in (arms[:1], arms):
            with pytest.raises(UnrecordableBlock):
                record(ledger, "log", 1, [event(1, *answered)])

        assert items(ledger) == {}
