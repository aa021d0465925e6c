"""A line of the request log says who, what and how long, as one JSON object."""

import msgspec

from gateway.workers.request_log import request_line
from tests.support.events import make_event


def test_a_line_is_one_json_object_with_a_readable_time() -> None:
    line = request_line(make_event(1))

    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    fields = msgspec.json.decode(line)
    assert fields["time"] == "2026-09-01T00:00:00Z"
    assert fields["id"] == "req_000000000001"
    assert fields["usage"]["hit"] == 1
    assert fields["duration"] == 0.001


def test_a_newline_in_a_name_stays_within_the_line() -> None:
    assert request_line(make_event(1, model="a\nb")).count(b"\n") == 1
