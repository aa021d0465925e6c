"""The rules of W3C Trace Context: what of `traceparent` and `tracestate` is read, and cut out."""

import pytest

from sluicegate.gateway.telemetry.trace_context import (
    context_of,
    is_sampled,
    split_context,
    unsampled,
)

_TRACE = "0af7651916cd43dd8448eb211c80319c"
_SPAN = "b7ad6b7169203331"
_PARENT = f"00-{_TRACE}-{_SPAN}-01"


def head(*lines: str, body: str = '{"a": 1}') -> bytes:
    return "\r\n".join(["POST / HTTP/1.1", "host: w", *lines, "x: y", "", body]).encode()


@pytest.mark.parametrize(
    ("value", "context"),
    [
        (_PARENT, _PARENT),
        (f"00-{_TRACE}-{_SPAN}-00", f"00-{_TRACE}-{_SPAN}-00"),
        (f"00-{_TRACE}-{_SPAN}-ff", f"00-{_TRACE}-{_SPAN}-ff"),
        # Of a later version, what version 00 has is read.
        (f"cc-{_TRACE}-{_SPAN}-01", _PARENT),
        (f"cc-{_TRACE}-{_SPAN}-01-more", _PARENT),
        (f"{_PARENT}-more", ""),
        (f"ff-{_TRACE}-{_SPAN}-01", ""),
        (f"00-{'0' * 32}-{_SPAN}-01", ""),
        (f"00-{_TRACE}-{'0' * 16}-01", ""),
        (_PARENT.upper(), ""),
        (_PARENT[:-1], ""),
        ("", ""),
        ("nonsense", ""),
        ("\xff", ""),
    ],
)
def test_a_traceparent_is_read_by_the_rules_of_its_version(value: str, context: str) -> None:
    assert context_of([(b"traceparent", value.encode("latin-1"))]) == context


def test_two_traceparents_are_none() -> None:
    field = (b"traceparent", _PARENT.encode())

    assert context_of([field, field]) == ""


def test_lines_of_tracestate_are_joined_and_useless_without_a_traceparent() -> None:
    states = [(b"tracestate", b"a=1"), (b"tracestate", b"b=2")]

    assert context_of([(b"traceparent", _PARENT.encode()), *states]) == f"{_PARENT} a=1,b=2"
    assert context_of(states) == ""


@pytest.mark.parametrize("state", [b"a=" + b"x" * 511, b"a=\xff"])
def test_a_tracestate_that_is_long_or_not_ascii_is_dropped(state: bytes) -> None:
    headers = [(b"traceparent", _PARENT.encode()), (b"tracestate", state)]

    assert context_of(headers) == _PARENT


@pytest.mark.parametrize("name", ["traceparent", "Traceparent"])
def test_requests_that_differ_in_their_trace_are_the_same_without_it(name: str) -> None:
    lines = [f"{name}: {_PARENT}", "tracestate: a=1", "Tracestate: b=2"]

    assert split_context(head(*lines)) == (f"{_PARENT} a=1,b=2", head())
    assert split_context(head(lines[0])) == (_PARENT, head())


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [f"traceparent: {_PARENT}", f"traceparent: {_PARENT}"],
        [f"traceparent: {_PARENT}", f"TRACEPARENT: {_PARENT}"[:12].lower() + "x"],
        [f"traceparent: {_PARENT}\r\n folded"],
        [f"traceparent: {_PARENT}x"],
        [f"traceparent: 00-{'0' * 32}-{_SPAN}-01"],
        [f"traceparent: {_PARENT.upper()}"],
        [f"xtraceparent: {_PARENT}"],
        [f"TRACEPARENT: {_PARENT}"],
        ["tracestate: a=1"],
    ],
)
def test_a_head_of_another_form_is_left_to_the_parser(lines: list[str]) -> None:
    assert split_context(head(*lines)) == ("", head(*lines))


@pytest.mark.parametrize("states", [["tracestate: a=1"] * 3, ["tracestate: a=" + "1" * 600]])
def test_no_head_gets_by_its_bounds_by_lines_that_are_taken_out(states: list[str]) -> None:
    request = head(f"traceparent: {_PARENT}", *states)

    assert split_context(request) == ("", request)


def test_a_body_is_not_taken_apart() -> None:
    body = f'{{"input": "a\\r\\ntraceparent: {_PARENT}"}}'

    assert split_context(head(body=body)) == ("", head(body=body))
    for before in ("1\r\n", ""):
        inside = head(body=f"{before}traceparent: {_PARENT}\r\n2")
        assert split_context(inside) == ("", inside)
    split = split_context(head(f"traceparent: {_PARENT}", "tracestate: a=1", body="tracestate: b"))
    assert split == (f"{_PARENT} a=1", head(body="tracestate: b"))


@pytest.mark.parametrize("flags", ["00", "01", "02", "03", "fe", "ff"])
def test_only_the_first_flag_says_sampled(flags: str) -> None:
    context = f"00-{_TRACE}-{_SPAN}-{flags} a=1"

    assert is_sampled(context) is (int(flags, 16) % 2 == 1)


def test_a_context_is_made_unsampled_with_all_else_kept() -> None:
    assert unsampled(f"00-{_TRACE}-{_SPAN}-03 a=1") == f"00-{_TRACE}-{_SPAN}-02 a=1"
    assert context_of([(b"traceparent", unsampled("").encode())]).endswith("-00")
