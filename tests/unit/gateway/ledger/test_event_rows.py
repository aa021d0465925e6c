"""Requests of one kind and second, whose ids follow on each other, are one row of the ledger."""

import sqlite3
from pathlib import Path

import msgspec
import pytest

from sluicegate.gateway.ledger.event_rows import rows_of_runs
from sluicegate.gateway.ledger.types import EventBlock
from sluicegate.gateway.types import RequestEvent, RequestId, Usage
from tests.support.events import START, make_event, make_run
from tests.support.ledgers import open_ledger, record, sums


def request(number: int, *, time: int = START, tenant: str = "acme") -> RequestEvent:
    usage = Usage.of(computed=1, rows=1, tokens=number)
    return msgspec.structs.replace(
        make_event(number, time=time, tenant=tenant, usage=usage),
        id=RequestId(f"req_{number:010x}"),
    )


def test_requests_that_ended_in_another_order_are_one_row_with_their_sums() -> None:
    events = [request(number, time=START + 90 - number) for number in (11, 9, 10)]

    (row,) = rows_of_runs(events)

    assert (row["id"], row["requests"], row["time"]) == ("req_0000000009", 3, START + 79)
    assert (row["items"], row["computed"], row["tokens"]) == (3, 3, 30)


@pytest.mark.parametrize(
    "other",
    [
        request(3),
        request(2, tenant="other"),
        request(2, time=START + 1_000_000_000),
        msgspec.structs.replace(request(2), status=503, code="upstream_unavailable"),
        msgspec.structs.replace(request(2), id=RequestId("another form")),
        msgspec.structs.replace(request(2), backend_region="us"),
        msgspec.structs.replace(request(2), client_id="order-1"),
    ],
)
def test_what_differs_has_a_row_of_its_own(other: RequestEvent) -> None:
    assert [row["requests"] for row in rows_of_runs([request(1), other])] == [1, 1]


def test_requests_with_equal_ids_of_the_caller_have_a_row_each() -> None:
    events = [msgspec.structs.replace(request(n), client_id="order-1") for n in (1, 2)]

    assert [row["requests"] for row in rows_of_runs([*events, request(3)])] == [1, 1, 1]


def test_ids_of_a_proxy_split_no_run() -> None:
    events = [msgspec.structs.replace(request(n), proxy_id=f"edge-{n}") for n in (1, 2, 3)]

    assert [row["requests"] for row in rows_of_runs(events)] == [3]


def test_a_run_goes_on_with_the_requests_after_it() -> None:
    run = make_run("req_00000000fe", count=2, usage=Usage.of(hit=3))
    after = msgspec.structs.replace(run, id=RequestId("req_0000000100"), count=1)

    (row,) = rows_of_runs([after, run])

    assert (row["requests"], row["items"], row["hit"]) == (3, 9, 9)


def test_requests_of_a_row_that_come_again_are_not_counted(tmp_path: Path) -> None:
    with open_ledger(tmp_path) as ledger:
        events = [request(number) for number in range(1, 6)]
        record(ledger, "w0-1", 5, events)

        recorded = ledger.recorder.record(
            [EventBlock(log_id="w0-1", first=3, last=6, events=[*events[2:], request(6)])]
        )

        assert (recorded.counted, recorded.duplicates) == (1, 3)
        assert sums(ledger).events == 6
    with sqlite3.connect(tmp_path / "ledger.db") as database:
        rows = database.execute("SELECT id, requests FROM usage_events ORDER BY id").fetchall()
    assert rows == [("req_0000000001", 5), ("req_0000000006", 1)]
