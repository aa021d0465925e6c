"""An event is counted once, however often and in whatever order it arrives."""

import itertools
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from sluicegate.gateway.errors import DependencyUnavailable
from sluicegate.gateway.ledger import schema
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.ledger.migrations import MIGRATIONS
from sluicegate.gateway.ledger.store import to_datetime
from sluicegate.gateway.ledger.types import EventBlock
from sluicegate.gateway.types import RequestId, Usage
from tests.support.events import START, make_event, make_run
from tests.support.ledgers import Clock, ledger_url, open_ledger, record, sums


@pytest.fixture
def ledger(database: str) -> Iterator[Ledger]:
    with Ledger.create(database, clock=Clock()) as opened:
        yield opened


def block(first: int, last: int, log_id: str = "w0-1") -> EventBlock:
    events = [make_event(number) for number in range(first, last + 1)]
    return EventBlock(log_id=log_id, first=first, last=last, events=events)


def test_a_block_that_comes_twice_is_counted_once(ledger: Ledger) -> None:
    once = ledger.recorder.record([block(1, 3)])
    again = ledger.recorder.record([block(1, 3)])

    assert (once.counted, once.duplicates) == (3, 0)
    assert (again.counted, again.duplicates) == (0, 3)
    assert sums(ledger).events == 3


def test_one_event_in_two_logs_is_counted_once(ledger: Ledger) -> None:
    record(ledger, "w0-1", 1, [make_event(1)])
    record(ledger, "w1-1", 1, [make_event(1)])

    assert sums(ledger).events == 1
    assert ledger.recorder.high_water(["w0-1", "w1-1"]) == {"w0-1": 1, "w1-1": 1}


@pytest.mark.parametrize("order", list(itertools.permutations([(1, 2), (3, 3), (4, 6), (7, 7)])))
def test_the_mark_never_passes_what_is_missing(
    ledger: Ledger, order: tuple[tuple[int, int], ...]
) -> None:
    there: set[int] = set()

    for first, last in order:
        ledger.recorder.record([block(first, last)])
        there |= set(range(first, last + 1))
        mark = ledger.recorder.high_water(["w0-1"])["w0-1"]
        assert mark == next(n for n in itertools.count() if n + 1 not in there)

    assert sums(ledger).waiting == 0


def test_blocks_that_overlap_after_a_resend_close_the_gap(ledger: Ledger) -> None:
    ledger.recorder.record([block(5, 8), block(5, 6), block(5, 9), block(1, 6)])

    assert ledger.recorder.high_water(["w0-1"]) == {"w0-1": 9}
    assert sums(ledger).events == 9
    assert sums(ledger).waiting == 0


def test_lost_records_are_counted_once_and_passed(ledger: Ledger) -> None:
    lost = EventBlock(log_id="w0-1", first=3, last=5, lost=True)

    ledger.recorder.record([block(1, 2), lost, lost, block(6, 6)])

    assert ledger.recorder.high_water(["w0-1"]) == {"w0-1": 6}
    assert sums(ledger).lost == 3


def test_a_gap_that_comes_again_or_is_known_loses_nothing(ledger: Ledger) -> None:
    ledger.recorder.record([block(1, 2)])
    gaps = [EventBlock(log_id="w0-1", first=first, last=first + 1, lost=True) for first in (1, 5)]

    lost = [ledger.recorder.record([gap]).lost for gap in (*gaps, *gaps)]

    assert lost == [0, 2, 0, 0]


def test_a_block_that_spans_a_known_range_moves_the_mark_to_its_end(ledger: Ledger) -> None:
    ledger.recorder.record([block(3, 4)])

    ledger.recorder.record([block(1, 6)])

    assert ledger.recorder.high_water(["w0-1"]) == {"w0-1": 6}
    assert sums(ledger).events == 6


def test_a_wrong_record_of_a_block_that_is_half_known_is_set_aside(ledger: Ledger) -> None:
    ledger.recorder.record([block(1, 2)])

    half = EventBlock(
        log_id="w0-1", first=2, last=3, events=[make_event(2)], wrong=[b"\x2a"], numbers=[2]
    )
    recorded = ledger.recorder.record([half])

    assert (recorded.duplicates, recorded.dead) == (1, 1)


def test_a_record_that_is_no_event_is_set_aside_once(ledger: Ledger) -> None:
    bad = EventBlock(log_id="w0-1", first=1, last=2, events=[make_event(1)], wrong=[b"\x2a"])

    first = ledger.recorder.record([bad])
    ledger.recorder.record([bad])

    assert (first.counted, first.dead) == (1, 1)
    assert sums(ledger).dead_letters == 1
    assert ledger.recorder.high_water(["w0-1"]) == {"w0-1": 2}


def test_an_event_that_no_column_can_hold_is_set_aside(ledger: Ledger) -> None:
    huge = make_event(2, usage=msgspec.structs.replace(Usage.of(hit=1), tokens=2**63))
    events = [make_event(1), huge, make_event(3)]

    recorded = record(ledger, "w0-1", 3, events)

    assert (recorded.counted, recorded.dead) == (2, 1)
    assert ledger.recorder.high_water(["w0-1"]) == {"w0-1": 3}


def test_a_run_of_more_requests_than_sums_can_hold_is_set_aside(ledger: Ledger) -> None:
    """Added to a sum of all tenants, it would leave no room for what others use."""
    huge = make_run("req_00000000ff", count=2**62, usage=Usage.of())
    events = [huge, msgspec.structs.replace(huge, id=RequestId("req_f000000000")), make_event(1)]

    recorded = record(ledger, "w0-1", 3, events)

    assert (recorded.counted, recorded.dead) == (1, 2)


def test_nothing_is_recorded_when_the_transaction_fails(tmp_path: Path) -> None:
    with open_ledger(tmp_path) as ledger:
        ledger.recorder.record([block(1, 1)])
    (tmp_path / "ledger.db").rename(tmp_path / "away.db")
    (tmp_path / "ledger.db").mkdir()

    with Ledger(ledger_url(tmp_path)) as broken, pytest.raises(DependencyUnavailable):
        broken.recorder.record([block(2, 2)])


def test_an_unknown_log_has_a_mark_of_nothing(ledger: Ledger) -> None:
    assert ledger.recorder.high_water(["w9-9"]) == {"w9-9": 0}
    assert ledger.recorder.high_water([]) == {}


def test_a_run_counts_as_all_its_requests_and_once(ledger: Ledger) -> None:
    run = make_run("req_00000000ff", count=30, usage=Usage.of(hit=2))
    block = EventBlock(log_id="w0-1", first=1, last=2, events=[run, make_event(1)])

    once = ledger.recorder.record([block])
    again = ledger.recorder.record([block])

    assert (once.counted, once.duplicates) == (31, 0)
    assert (again.counted, again.duplicates) == (0, 31)
    assert sums(ledger).events == 31
    (row,) = ledger.usage(None, to_datetime(START), to_datetime(START + 1_000_000_000))
    assert (row.requests, row.items, row.hit) == (31, 61, 61)


def test_of_runs_that_come_again_with_new_ones_only_the_new_count(ledger: Ledger) -> None:
    runs = [make_run(f"req_{number:010x}", count=5) for number in (0, 16, 32)]
    record(ledger, "w0-1", 2, runs[:2])

    recorded = ledger.recorder.record([EventBlock(log_id="w0-1", first=2, last=3, events=runs[1:])])

    assert (recorded.counted, recorded.duplicates) == (5, 5)
    assert sums(ledger).events == 15


def test_a_run_beside_a_request_that_another_log_had_counts_as_all_its_requests(
    ledger: Ledger,
) -> None:
    record(ledger, "w0-1", 1, [make_event(1)])
    run = make_run("req_00000000ff", count=30, usage=Usage.of(hit=2))

    record(ledger, "w1-1", 2, [make_event(1), run])

    (row,) = ledger.usage(None, to_datetime(START), to_datetime(START + 1_000_000_000))
    assert (row.requests, row.items, row.hit) == (31, 61, 61)


def test_a_ledger_of_the_first_version_is_brought_up_to_date(tmp_path: Path) -> None:
    """Its rows are events of one request each."""
    path = tmp_path / "old.db"
    with sqlite3.connect(path) as old:
        added = {place for migration in MIGRATIONS for place in migration.columns}
        columns = [c.name for c in schema.usage_events.columns if str(c) not in added]
        old.execute(f"CREATE TABLE usage_events ({', '.join(columns)}, PRIMARY KEY (id))")
        old.execute("CREATE TABLE schema_version (version INTEGER PRIMARY KEY)")
        old.execute("INSERT INTO schema_version VALUES (1)")
        old.execute("INSERT INTO usage_events (id) VALUES ('req_old')")
    old.close()

    for _ in range(2):
        with Ledger.create(f"sqlite:///{path}") as ledger:
            assert sums(ledger).events == 1
    with Ledger.create(f"sqlite:///{path}") as ledger:
        record(ledger, "w0-1", 1, [make_run("req_00000000ff", count=2)])
        assert sums(ledger).events == 3


def test_usage_is_known_though_an_event_says_what_no_request_can_have_used(
    ledger: Ledger,
) -> None:
    absurd = msgspec.structs.replace(Usage.of(hit=1), tokens=2**62)
    events = [make_event(1, usage=absurd), make_event(2, usage=absurd), make_event(3)]

    recorded = record(ledger, "w0-1", 3, events)

    (row,) = ledger.usage("acme", to_datetime(START), to_datetime(START + 1_000_000))
    assert (recorded.counted, recorded.dead, row.hit) == (1, 2, 1)


def test_the_marks_of_any_number_of_logs_are_known(ledger: Ledger) -> None:
    record(ledger, "w0-1", 1, [make_event(1)])

    marks = ledger.recorder.high_water(["w0-1", *(f"w1-{number}" for number in range(70_000))])

    assert (len(marks), marks["w0-1"], marks["w1-69999"]) == (70_001, 1, 0)
