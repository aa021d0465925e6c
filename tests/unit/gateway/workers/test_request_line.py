"""A line of the request log says who, what and how long, as one JSON object."""

import msgspec

from sluicegate.gateway.types import RequestEvent, RevisionUsage
from sluicegate.gateway.workers.request_log import request_lines
from tests.support.events import make_event, make_run


def test_a_line_is_one_json_object_with_a_readable_time() -> None:
    line = request_lines(make_event(1))

    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    fields = msgspec.json.decode(line)
    assert fields["time"] == "2026-09-01T00:00:00Z"
    assert fields["id"] == "req_000000000001"
    assert fields["usage"]["hit"] == 1
    assert fields["duration"] == 0.001


def test_a_line_leaves_out_what_few_events_have() -> None:
    event = msgspec.msgpack.decode(msgspec.msgpack.encode(make_event(1)), type=RequestEvent)
    other = msgspec.structs.replace(
        event, client_id="order-1", backend_region="us", arms=(RevisionUsage(arm="2", hit=1),)
    )

    plain, full = (msgspec.json.decode(request_lines(each)) for each in (event, other))

    assert set(full) - set(plain) == {"client_id", "backend_region", "arms"}
    assert plain["code"] == ""
    assert full["client_id"] == "order-1"
    assert full["arms"][0]["hit"] == 1


def test_an_id_of_a_proxy_has_the_field_of_customers_ids() -> None:
    named = msgspec.structs.replace(make_event(1), proxy_id="edge-1")

    line = msgspec.json.decode(request_lines(named))

    assert line["client_id"] == "edge-1"
    assert "proxy_id" not in line


def test_a_newline_in_a_name_stays_within_the_line() -> None:
    assert request_lines(make_event(1, model="a\nb")).count(b"\n") == 1


def test_a_run_has_a_line_for_each_of_its_requests() -> None:
    lines = request_lines(make_run("req_00000000ff", count=2)).splitlines()

    assert [msgspec.json.decode(line)["id"] for line in lines] == [
        "req_00000000ff",
        "req_0000000100",
    ]
    assert lines[0].replace(b"00000000ff", b"0000000100") == lines[1]
    assert "count" not in msgspec.json.decode(lines[0])
