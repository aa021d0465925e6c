"""The audit is read by who changed what, when."""

from collections.abc import Iterator
from datetime import timedelta

import pytest

from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.ledger.store import to_datetime
from sluicegate.gateway.ledger.types import AuditFilter
from tests.support.ledgers import Clock

START = to_datetime(Clock().now)


@pytest.fixture
def ledger(database: str) -> Iterator[Ledger]:
    clock = Clock()
    with Ledger.create(database, clock=clock) as opened:
        for actor, action, subject in (
            ("admin", "tenant.create", "acme"),
            ("kim", "key.create", "key_1"),
            ("kim", "key.revoke", "key_1"),
            ("admin", "keys", "all"),
        ):
            opened.audit(actor, action, subject)
            clock.advance(60)
        yield opened


CASES: tuple[tuple[AuditFilter, list[int]], ...] = (
    (AuditFilter(), [4, 3, 2, 1]),
    (AuditFilter(actor="kim"), [3, 2]),
    (AuditFilter(kind="key"), [3, 2]),
    (AuditFilter(kind="key.revoke"), [3]),
    (AuditFilter(subject="acme"), [1]),
    (AuditFilter(since=START + timedelta(seconds=61)), [4, 3]),
    (AuditFilter(until=START + timedelta(seconds=60)), [1]),
    (AuditFilter(kind="k%"), []),
)


def test_a_filter_leaves_the_entries_that_fit(ledger: Ledger) -> None:
    found = [ledger.audit.entries(of=wanted) for wanted, _ in CASES]

    numbers = [[entry.number for entry in entries] for entries in found]
    assert numbers == [expected for _, expected in CASES]


def test_a_filter_continues_before_a_number(ledger: Ledger) -> None:
    found = ledger.audit.entries(of=AuditFilter(actor="admin"), before=4)

    assert [entry.subject for entry in found] == ["acme"]


def test_names_to_filter_by_are_those_of_the_changes(ledger: Ledger) -> None:
    ledger.audit("kim", "models.reload.done", "big")

    names = ledger.audit.names()

    assert names.actors == ["admin", "kim"]
    assert {"key", "key.create", "models", "models.reload", "models.reload.done"} < {*names.kinds}
    assert names.kinds == sorted(names.kinds)
