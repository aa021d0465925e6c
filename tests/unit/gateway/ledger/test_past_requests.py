"""A request is found by its id or its caller's id, also beside rows whose ids do not count."""

from collections.abc import Iterator

import msgspec
import pytest

from sluicegate.gateway.ledger.batch_types import FAILED
from sluicegate.gateway.ledger.ledger import Ledger
from tests.support.events import START, make_event
from tests.support.ledgers import Clock, record

LINE = "batch_0123456789abcd-0000007"


@pytest.fixture
def ledger(database: str) -> Iterator[Ledger]:
    with Ledger.create(database, clock=Clock()) as opened:
        event = msgspec.structs.replace(make_event(1), id=LINE)
        record(opened, "w", 1, [event])
        yield opened


def test_a_line_of_a_batch_is_found(ledger: Ledger) -> None:
    found = ledger.request("acme", LINE)

    assert found is not None
    assert (found.id, found.model) == (LINE, "sentiment")
    assert ledger.request("other", LINE) is None
    assert ledger.request("acme", LINE[:-1] + "8") is None


def test_a_line_that_failed_is_found_by_its_id_until_it_is_answered(ledger: Ledger) -> None:
    """Its failure has an event of its own, whose id the caller does not know."""
    line = LINE[:-1] + "9"
    failed = msgspec.structs.replace(make_event(2), id=f"{line}{FAILED}", status=422)
    record(ledger, "w", 2, [failed])
    found = ledger.request("acme", line)
    record(ledger, "w", 3, [msgspec.structs.replace(make_event(3), id=line)])
    answered = ledger.request("acme", line)

    assert found is not None
    assert (found.id, found.status) == (line, 422)
    assert answered is not None
    assert (answered.id, answered.status) == (line, 200)


def test_requests_are_found_by_the_id_that_the_caller_gave_them(ledger: Ledger) -> None:
    tries = [
        msgspec.structs.replace(make_event(number, time=START + number), client_id="order-1")
        for number in (2, 3, 4)
    ]
    tries[1] = msgspec.structs.replace(tries[1], model="toxicity")
    others = [
        make_event(5),
        msgspec.structs.replace(make_event(6), client_id="order-2"),
        msgspec.structs.replace(make_event(7, tenant="other"), client_id="order-1"),
    ]
    record(ledger, "w", 7, [*tries, *others])

    found = ledger.requests("acme", "order-1")
    of_key = ledger.requests("acme", "order-1", models=["toxicity"])

    assert [(one.id, one.client_id) for one in found] == [
        (event.id, "order-1") for event in reversed(tries)
    ]
    assert all(one.usage is not None and one.usage.hit == 1 for one in found)
    assert [one.id for one in of_key] == [tries[1].id]


@pytest.mark.parametrize("request_id", ["batch_0123456789afffffffff", "batch_0123456789abcd"])
def test_the_row_beside_it_may_be_of_a_batch(ledger: Ledger, request_id: str) -> None:
    assert ledger.request("acme", request_id) is None
