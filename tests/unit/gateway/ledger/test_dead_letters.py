"""Dead letters: listed, counted once after all, discarded; each change is in the audit."""

from collections.abc import Iterator

import msgspec
import pytest

from sluicegate.gateway.errors import InvalidRequest, NotFound
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.ledger.types import EventBlock
from sluicegate.gateway.types import RequestEvent
from tests.support.events import make_event
from tests.support.ledgers import Clock, sums


@pytest.fixture
def ledger(database: str) -> Iterator[Ledger]:
    with Ledger.create(database, clock=Clock()) as opened:
        yield opened


def refused(ledger: Ledger, wrong: RequestEvent) -> None:
    """Record a block whose only record is not an event."""
    payload = msgspec.msgpack.encode(wrong)
    ledger.recorder.record([EventBlock(log_id="log-1", first=1, last=1, wrong=[payload])])


def test_dead_letters_are_listed_with_their_reason_and_size(ledger: Ledger) -> None:
    refused(ledger, make_event(1))
    ledger.recorder.add_dead_letter("", "the entry's fields are wrong", b"abc")

    newest, oldest = ledger.dead_letters.entries()

    assert (newest.log_id, newest.size) == ("", 3)
    assert newest.reason == "the entry's fields are wrong"
    assert (oldest.log_id, oldest.reason) == ("log-1", "not an event")
    assert ledger.dead_letters.entries(before=newest.number) == [oldest]
    assert ledger.dead_letters.count() == 2
    assert ledger.dead_letters.payload(newest.number) == b"abc"


def test_a_replayed_dead_letter_is_counted_once(ledger: Ledger) -> None:
    refused(ledger, make_event(1))
    (letter,) = ledger.dead_letters.entries()

    counted = ledger.dead_letters.count_events(letter.number, [make_event(1)], actor="kim")

    assert counted == 1
    assert sums(ledger).events == 1
    assert ledger.dead_letters.count() == 0
    with pytest.raises(NotFound):
        ledger.dead_letters.count_events(letter.number, [make_event(1)], actor="kim")
    (entry,) = ledger.audit.entries()
    assert (entry.actor, entry.action) == ("kim", "dead_letter.replay")
    assert entry.detail == {"log": "log-1", "counted": 1}


def test_a_block_that_comes_once_more_brings_no_dead_letter_back(ledger: Ledger) -> None:
    refused(ledger, make_event(1))
    (letter,) = ledger.dead_letters.entries()
    ledger.dead_letters.discard(letter.number, actor="kim")

    refused(ledger, make_event(1))

    assert ledger.dead_letters.count() == 0


def test_an_event_out_of_range_stays_a_dead_letter(ledger: Ledger) -> None:
    refused(ledger, make_event(1))
    (letter,) = ledger.dead_letters.entries()
    wrong = msgspec.structs.replace(make_event(1), time=-1)

    with pytest.raises(InvalidRequest, match="out of range"):
        ledger.dead_letters.count_events(letter.number, [wrong], actor="kim")

    assert ledger.dead_letters.count() == 1
    assert ledger.audit.entries() == []


def test_a_discarded_dead_letter_is_named_in_the_audit(ledger: Ledger) -> None:
    refused(ledger, make_event(1))
    (letter,) = ledger.dead_letters.entries()

    discarded = ledger.dead_letters.discard(letter.number, actor="kim")

    assert discarded == letter
    assert sums(ledger).events == 0
    (entry,) = ledger.audit.entries()
    assert (entry.action, entry.subject) == ("dead_letter.discard", str(letter.number))
    assert entry.detail == {"log": "log-1", "reason": "not an event", "bytes": letter.size}
