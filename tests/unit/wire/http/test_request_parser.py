"""What RFC 9110 and RFC 9112 say of heads, framing, upgrades and callers who close their half."""

import gzip
import re

import msgspec
import pytest

from sluicegate.gateway.errors import InvalidRequest
from sluicegate.gateway.http.problem_details import encode_problem
from testing.waiting import until
from tests.support.api import KEY
from tests.support.entry_points import HALF_CLOSE, EntryPoint

pytestmark = pytest.mark.anyio
_BODY = b'{"model":"sentiment","input":"known"}'
_LINE = b"POST /v1/classify HTTP/1.1\r\n"
_HOST = b"host: w\r\n"
_KEY = b"authorization: Bearer %b\r\n" % KEY.encode()
_LENGTH = b"content-length: %d\r\n" % len(_BODY)
_ASK = _LINE + _HOST + _KEY + _LENGTH + b"\r\n" + _BODY
_H2C = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"
_WEBSOCKET = b"connection: upgrade\r\nupgrade: websocket\r\n"

_NO_REQUESTS = [
    (_LINE + _KEY + _LENGTH, (400, "invalid_request")),
    (_LINE + _HOST + _HOST + _KEY + _LENGTH, (400, "invalid_request")),
    (_LINE + b"host: a b\r\n" + _KEY + _LENGTH, (400, "invalid_request")),
    (_LINE + b"host: a/b\r\n" + _KEY + _LENGTH, (400, "invalid_request")),
    (
        _LINE.replace(b"1.1", b"1.0") + _HOST + _KEY + b"transfer-encoding: chunked\r\n",
        (400, "invalid_request"),
    ),
    (_LINE + _HOST + _KEY + b"transfer-encoding: gzip, chunked\r\n", (501, "not_implemented")),
    (
        _LINE + _HOST + b"transfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n",
        (501, "not_implemented"),
    ),
    (_LINE + _HOST + _KEY + b"transfer-encoding: gzip\r\n", (400, "invalid_request")),
    (_LINE + _HOST + _LENGTH + b"transfer-encoding: chunked\r\n", (400, "invalid_request")),
    (b"PRI * HTTP/2.0\r\n", (505, "http_version_not_supported")),
    (_LINE.replace(b"1.1", b"2.0") + _HOST, (505, "http_version_not_supported")),
    (b"CONNECT a:443 HTTP/1.1\r\nhost: a:443\r\n", (400, "invalid_request")),
    (b"GET http://w HTTP/1.1\r\nhost: w\r\n", (400, "invalid_request")),
    (b"NONSENSE\r\n", (400, "invalid_request")),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n", (400, "invalid_request")),
    (_LINE + _HOST + b"bad header\r\n", (400, "invalid_request")),
]
_KEYS = [
    (b"authorization: bearer %b\r\n", True),
    (b"authorization: BEARER   %b\r\n", True),
    (b"authorization: Basic %b\r\n", False),
    (b"authorization: Bearer\r\n", False),
    (b"authorization:\r\n", False),
    (b"authorization: Basic YTpi\r\nauthorization: Bearer %b\r\n", False),
    (b"authorization: Bearer %b\r\nauthorization: Basic YTpi\r\n", False),
    (b"authorization: Bearer %b\r\nauthorization: Bearer %b\r\n", False),
    (b"authorization: Bearer %b, Basic YTpi\r\n", False),
    (b"", False),
]


@pytest.fixture(params=["fast path", "application"])
async def entry(anyio_backend: str, request: pytest.FixtureRequest) -> EntryPoint:
    return EntryPoint(fast=request.param == "fast path")


def statuses(answer: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", answer)]


def refusal(answer: bytes) -> tuple[int, str]:
    """Return status and code of the one answer that ended a connection: a problem with an id."""
    head, _, rest = answer.partition(b"\r\n\r\n")
    body = rest.removesuffix(b"<closed>")
    assert rest.endswith(b"<closed>")
    assert b"\r\nconnection: close" in head
    assert b"\r\ncontent-type: application/problem+json\r\n" in head
    assert b"\r\nx-request-id: " in head
    assert b"content-length: " in head
    (status,) = statuses(answer)
    problem = msgspec.json.decode(body)
    assert problem["status"] == status
    assert "request_id" in problem
    return status, problem["code"]


@pytest.mark.parametrize("upgrade", [_H2C, _WEBSOCKET])
async def test_an_upgrade_that_is_not_offered_is_ignored(entry: EntryPoint, upgrade: bytes) -> None:
    asking = _LINE + _HOST + _KEY + upgrade + _LENGTH + b"\r\n" + _BODY

    answer = await entry.send(asking + _ASK + asking)

    assert statuses(answer) == [200, 200, 200]
    assert not answer.endswith(b"<closed>")


async def test_a_body_of_chunks_behind_an_upgrade_is_read(entry: EntryPoint) -> None:
    head = _LINE + _HOST + _KEY + _H2C + b"transfer-encoding: chunked\r\n\r\n"
    chunks = b"5;a=b\r\n%b\r\n%x\r\n%b\r\n0\r\nx-trailer: y\r\n\r\n"
    asking = head + chunks % (_BODY[:5], len(_BODY) - 5, _BODY[5:])

    whole = await entry.send(asking + _ASK)
    bytewise = await entry.send(*[asking[i : i + 1] for i in range(len(asking))], _ASK)

    assert statuses(whole) == statuses(bytewise) == [200, 200]


async def test_an_upgrade_without_a_body_is_ignored(entry: EntryPoint) -> None:
    asking = b"GET /health/live HTTP/1.1\r\nhost: w\r\n" + _WEBSOCKET + b"\r\n"

    assert statuses(await entry.send(asking + asking + _ASK)) == [200, 200, 200]


async def test_an_upgrade_and_a_wait_for_100_go_together(entry: EntryPoint) -> None:
    head = _LINE + _HOST + _KEY + _H2C + b"expect: 100-continue\r\n" + _LENGTH + b"\r\n"

    assert statuses(await entry.send(head, _BODY, _ASK)) == [100, 200, 200]


async def test_what_is_no_request_is_a_problem_that_ends_the_connection(
    entry: EntryPoint,
) -> None:
    for head, expected in _NO_REQUESTS:
        alone = await entry.send(head + b"\r\n" + gzip.compress(_BODY))
        behind = await entry.send(_ASK + head + b"\r\n" + _BODY)

        assert refusal(alone) == expected, head
        assert statuses(behind) == [200, expected[0]], head


async def test_hosts_of_every_form_are_taken(entry: EntryPoint) -> None:
    for host in (b"", b"a.example:8080", b"[::1]:8080", b"127.0.0.1"):
        asking = _LINE + b"host: %b\r\n" % host + _KEY + _LENGTH + b"\r\n" + _BODY
        assert statuses(await entry.send(asking)) == [200], host


async def test_the_oldest_version_needs_no_host(entry: EntryPoint) -> None:
    asking = _LINE.replace(b"1.1", b"1.0") + _KEY + _LENGTH + b"\r\n" + _BODY

    assert statuses(await entry.send(asking)) == [200]


@pytest.mark.parametrize("size", [16, 4096, 60_000, 1_000_000])
async def test_a_head_beyond_64_kib_is_refused_wherever_it_is_long(
    entry: EntryPoint, size: int
) -> None:
    for head in (
        _LINE + _HOST + b"x: " + b"y" * 66_000 + b"\r\n" + _LENGTH + b"\r\n",
        b"POST /" + b"y" * 66_000 + b" HTTP/1.1\r\n" + _HOST + b"\r\n",
        _LINE + _HOST + b"x: " + b" " * 90_000 + b"y\r\n\r\n",
        _LINE + _HOST + b"".join(b"%b%d: y\r\n" % (b"x" * 900, n) for n in range(80)) + b"\r\n",
    ):
        data = head + _BODY
        parts = [data[at : at + size] for at in range(0, len(data), size)]
        parts = parts if size > 16 else [data[:65_000], *parts[65_000 // 16 :]]
        assert refusal(await entry.send(_ASK[:0], *parts)) == (431, "header_fields_too_large")


async def test_a_head_without_end_is_refused_before_it_has_ended(entry: EntryPoint) -> None:
    parts = [_LINE + _HOST + b"x: "] + [b"y" * 8192] * 12

    answer = await entry.send(*parts)

    assert refusal(answer) == (431, "header_fields_too_large")


async def test_empty_lines_without_end_are_refused(entry: EntryPoint) -> None:
    answer = await entry.send(_ASK, *[b"\r\n" * 4096] * 20)

    assert statuses(answer) == [200, 431]
    assert answer.endswith(b"<closed>")


@pytest.mark.parametrize(("fields", "status"), [(100, 200), (101, 431)])
async def test_a_request_may_have_100_fields(entry: EntryPoint, fields: int, status: int) -> None:
    more = b"".join(b"x%d: y\r\n" % number for number in range(fields - 3))
    asking = _LINE + _HOST + _KEY + _LENGTH + more + b"\r\n" + _BODY

    assert statuses(await entry.send(asking)) == [status]


@pytest.mark.parametrize(("size", "status"), [(65_536, 200), (65_537, 431)])
async def test_the_bound_on_a_head_is_64_kib(entry: EntryPoint, size: int, status: int) -> None:
    start = _LINE + _HOST + _KEY + _LENGTH + b"x: "
    head = start + b"y" * (size - len(start) - 4) + b"\r\n\r\n"

    for before in (b"", _ASK * 20):
        assert statuses(await entry.send(before + head + _BODY))[-1] == status


@pytest.mark.parametrize(("size", "status"), [(65_536, 200), (65_537, 431)])
async def test_the_bound_holds_for_a_head_behind_a_body_in_the_same_read(
    entry: EntryPoint, size: int, status: int
) -> None:
    start = _LINE + _HOST + _KEY + _LENGTH + b"x: "
    head = start + b"y" * (size - len(start) - 4) + b"\r\n\r\n"

    answer = await entry.send(_ASK[:-10], _ASK[-10:] + head + _BODY)

    assert statuses(answer) == [200, status]


async def test_a_head_just_within_the_bound_is_answered(entry: EntryPoint) -> None:
    asking = _LINE + _HOST + _KEY + _LENGTH + b"x: " + b"y" * 65_000 + b"\r\n\r\n" + _BODY
    parts = [asking[at : at + 4096] for at in range(0, len(asking), 4096)]

    assert statuses(await entry.send(*parts)) == [200]
    assert statuses(await entry.send(_ASK * 50 + asking + _ASK)) == [200] * 52


@pytest.mark.parametrize(
    "beside",
    [
        b"1;" + b"x" * 60_000,
        b"0\r\n" + b"x: y\r\n" * 10_000,
        b"0\r\nx: " + b"y" * 60_000,
        b"1;%b\r\na\r\n" % (b"x" * 1000) * 60,
    ],
)
async def test_extensions_and_trailers_without_end_are_refused(
    entry: EntryPoint, beside: bytes
) -> None:
    head = _LINE + _HOST + _KEY + b"transfer-encoding: chunked\r\n\r\n"

    answer = await entry.send(head, *[beside[at : at + 4096] for at in range(0, len(beside), 4096)])

    assert statuses(answer)[-1] in {400, 413}
    assert answer.endswith(b"<closed>") or statuses(answer) == [413]


async def test_a_body_of_the_smallest_chunks_is_answered(entry: EntryPoint) -> None:
    body = _BODY + b" " * 1400
    head = _LINE + _HOST + _KEY + b"transfer-encoding: chunked\r\n\r\n"
    chunks = b"".join(b"0001\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"

    assert statuses(await entry.send(head + chunks + _ASK)) == [200, 200]


async def test_trailers_are_no_header_fields(entry: EntryPoint) -> None:
    head = _LINE + _HOST + b"transfer-encoding: chunked\r\n\r\n"
    chunks = b"%x\r\n%b\r\n0\r\n%b\r\n" % (len(_BODY), _BODY, _KEY)

    assert statuses(await entry.send(head, chunks)) == [401]


@pytest.mark.parametrize("is_upgrade", [False, True])
async def test_a_trailer_that_ends_the_connection_hides_no_request_in_a_body(
    entry: EntryPoint, *, is_upgrade: bool
) -> None:
    framing = b"transfer-encoding: chunked\r\n" + _H2C * is_upgrade
    chunks = b"%x\r\n%b\r\n0\r\nconnection: close\r\n\r\n" % (len(_BODY), _BODY)
    outer = b"POST /nothing HTTP/1.1\r\n" + _HOST + b"content-length: %d\r\n\r\n" % len(_ASK)

    answer = await entry.send(_LINE + _HOST + _KEY + framing + b"\r\n" + chunks, outer, _ASK)

    assert statuses(answer) == [200]
    assert b"\r\nconnection: close\r\n" in answer
    assert answer.endswith(b"<closed>")


async def test_an_empty_line_behind_each_body_is_no_head(entry: EntryPoint) -> None:
    for _ in range(3):
        answer = await entry.send(_ASK, b"\r\n" * 15_000)
        assert statuses(answer) == [200]


async def test_an_encoded_slash_separates_nothing(entry: EntryPoint) -> None:
    for target in (b"/v1%2fclassify", b"/v1%2Fclassify", b"/v1/models%2fsentiment"):
        asking = b"POST " + target + b" HTTP/1.1\r\n" + _HOST + _KEY + _LENGTH + b"\r\n" + _BODY
        assert statuses(await entry.send(asking)) == [404], target
    named = b"GET /v1/models/%73entiment HTTP/1.1\r\n" + _HOST + _KEY + b"\r\n"
    assert statuses(await entry.send(named)) == [200]


async def test_an_odd_key_is_answered_alike_on_every_route(entry: EntryPoint) -> None:
    for lines, is_known in _KEYS:
        key = lines.replace(b"%b", KEY.encode())
        infer = b"POST /v1/infer/nothing HTTP/1.1\r\n"
        requests = [
            _LINE + _HOST + key + _LENGTH + b"\r\n" + _BODY,
            infer + _HOST + key + b"content-length: 13\r\n\r\n" + b'{"inputs":[]}',
            b"GET /v1/models HTTP/1.1\r\n" + _HOST + key + b"\r\n",
            b"GET /v1/models/sentiment HTTP/1.1\r\n" + _HOST + key + b"\r\n",
        ]

        answers = [await entry.send(request) for request in requests]

        found = [statuses(answer) == [401] for answer in answers]
        assert found == [not is_known] * 4, lines
        if not is_known:
            problems = [msgspec.json.decode(answer.partition(b"\r\n\r\n")[2]) for answer in answers]
            for problem in problems:
                problem.pop("error", None)  # what OpenAI's clients read, of the routes of models
                assert problem == problems[0]
            assert all(b"\r\nwww-authenticate: Bearer " in answer for answer in answers)


async def test_lines_of_cache_control_are_one_list(entry: EntryPoint) -> None:
    head = _LINE + _HOST + _KEY + _LENGTH
    await entry.send(_ASK)

    both = head + b"cache-control: max-age=60\r\ncache-control: no-cache\r\n\r\n"
    answer = await entry.send(both + _BODY)

    assert b"\r\ncache-status: sluicegate; fwd=request" in answer


async def test_a_caller_that_closes_its_half_is_answered(entry: EntryPoint) -> None:
    new = _ASK.replace(b"known", b"newer")

    miss = await entry.send(_ASK, HALF_CLOSE)
    hit = await entry.send(_ASK, HALF_CLOSE)
    pipelined = await entry.send(new + _ASK + new, HALF_CLOSE)

    assert (statuses(miss), statuses(hit), statuses(pipelined)) == ([200], [200], [200] * 3)
    assert all(answer.endswith(b"<closed>") for answer in (miss, hit, pipelined))


async def test_a_caller_that_closes_its_half_is_waited_for_by_what_it_asked(
    entry: EntryPoint,
) -> None:
    entry.api.scene.runner.gate.clear()
    entry.protocol.data_received(_ASK + _ASK)
    await entry.rest()
    entry.protocol.eof_received()
    await entry.rest()
    early = (bytes(entry.transport.written), entry.transport.is_closing())

    entry.api.scene.runner.gate.set()
    await entry.rest()

    assert early == (b"", False)
    assert statuses(bytes(entry.transport.written)) == [200, 200]
    assert entry.transport.is_closing()


@pytest.mark.parametrize("length", [0, 40, len(_ASK) - 10])
async def test_half_a_request_before_the_half_close_is_let_go(
    entry: EntryPoint, length: int
) -> None:
    entry.protocol.data_received(_ASK + _ASK[:length])
    await entry.rest()
    entry.protocol.eof_received()
    await entry.rest()

    assert statuses(bytes(entry.transport.written)) == [200]
    assert entry.transport.is_closing()
    await until(lambda: not entry.state.tasks)


async def test_what_comes_behind_a_refusal_is_not_read(entry: EntryPoint) -> None:
    entry.protocol.data_received(b"NONSENSE\r\n\r\n")
    entry.protocol.data_received(_ASK)
    await entry.rest()

    assert statuses(bytes(entry.transport.written)) == [400]
    assert entry.transport.has_ended
    entry.protocol.eof_received()
    assert entry.transport.is_closing()


async def test_a_refusal_has_the_fields_of_any_problem(entry: EntryPoint) -> None:
    answer = await entry.send(b"NONSENSE\r\n\r\n")

    told = msgspec.json.decode(answer.partition(b"\r\n\r\n")[2].removesuffix(b"<closed>"))
    usual = msgspec.json.decode(encode_problem(InvalidRequest(told["detail"]), "req_1"))
    assert told | {"request_id": "req_1"} == usual


async def test_a_body_without_end_behind_its_answer_ends_the_connection(
    entry: EntryPoint,
) -> None:
    head = _LINE + _HOST + b"transfer-encoding: chunked\r\n\r\n"
    refused = await entry.send(head)

    for data in (b"ffffffff\r\n", *[b"x" * 65_536] * 1_100):
        if not entry.transport.is_closing():
            entry.protocol.data_received(data)

    assert statuses(refused) == [401]
    assert entry.transport.is_closing()


@pytest.mark.parametrize("line", [_LINE, b"POST /v1/nothing HTTP/1.1\r\n"])
async def test_the_last_answer_does_not_cut_off_the_body_that_is_still_sent(
    entry: EntryPoint, line: bytes
) -> None:
    head = line + _HOST + b"connection: close\r\ncontent-length: 9000000\r\n\r\n"
    entry.protocol.data_received(head + bytes(100_000))
    await entry.rest()
    answered = (statuses(bytes(entry.transport.written)), entry.transport.has_ended)
    open_, reads = not entry.transport.is_closing(), entry.transport.reads

    for _ in range(80):
        entry.protocol.data_received(bytes(100_000))
    entry.protocol.eof_received()

    assert answered in [([401], True), ([404], True)]
    assert (open_, reads) == (True, True)
    assert entry.transport.is_closing()


async def test_a_body_that_was_read_needs_no_waiting_for(entry: EntryPoint) -> None:
    answer = await entry.send(_LINE + _HOST + b"connection: close\r\n" + _LENGTH + b"\r\n" + _BODY)

    assert statuses(answer) == [401]
    assert not entry.transport.has_ended
