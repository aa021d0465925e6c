"""What applications may send, and what clients then read."""

import asyncio
from typing import Any

import pytest

from sluicegate.wire.http.connection import Connection, Front, ServerState
from sluicegate.wire.http.exchange import BUFFERED_HTTP
from sluicegate.wire.http.messages import App, answer_head
from sluicegate.wire.http.refusals import Refusal
from sluicegate.wire.http.timeouts import ConnectionTimeouts
from sluicegate.wire.http.writing import WriteCoalescer
from tests.support.entry_points import RecordedTransport

pytestmark = pytest.mark.anyio
_GET = b"GET /path%2Fa%20b?c=d HTTP/1.1\r\nhost: h\r\n\r\n"
_POST = b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 4\r\n"
_LENGTH = (b"content-length", b"4")
_FAILED = b"HTTP/1.1 500 Internal Server Error\r\n"


class Side:
    answers_half_closed = True

    def __init__(self) -> None:
        self.coalescer = WriteCoalescer()

    def front(self, connection: Connection) -> Front | None:
        return None

    def refusal(self, refusal: Refusal, default_lines: bytes) -> bytes:
        return answer_head(refusal.status, b"", 0, default_lines, is_last=True)


class Caller:
    """Calls an application over one connection."""

    def __init__(self, app: App) -> None:
        self.state = ServerState(app, Side(), ConnectionTimeouts())
        self.transport = RecordedTransport()
        self.connection = Connection(self.state)
        self.connection.connection_made(self.transport)

    async def ask(self, *parts: bytes) -> bytes:
        for part in parts:
            self.connection.data_received(part)
            for _ in range(10):
                await asyncio.sleep(0)
        answer = bytes(self.transport.written)
        self.transport.written.clear()
        return answer + b"<closed>" * self.transport.is_closing()


def sending(*messages: dict[str, Any], status: int = 200, headers: Any = ()) -> App:
    """Return an application that sends a head, and bodies."""

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for message in messages:
            await send({"type": "http.response.body", **message})

    return app


async def test_an_answer_of_unknown_length_is_sent_in_chunks() -> None:
    app = sending({"body": b"some", "more_body": True}, {"body": b"", "more_body": True}, {})

    answer = await Caller(app).ask(_GET)

    assert answer == (
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nsome\r\n0\r\n\r\n"
    )


async def test_an_answer_without_a_body_has_no_framing() -> None:
    assert await Caller(sending({}, status=304)).ask(_GET) == b"HTTP/1.1 304 Not Modified\r\n\r\n"
    head = await Caller(sending({"body": b"body"}, headers=[_LENGTH])).ask(
        _GET.replace(b"GET", b"HEAD")
    )
    assert head == b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n"


async def test_headers_are_in_lower_case_and_cannot_begin_others() -> None:
    body = {"body": b"body"}
    fine = await Caller(sending(body, headers=[(b"X-Y", b"Z"), _LENGTH])).ask(_GET)
    broken = [
        await Caller(sending(body, headers=[header, _LENGTH])).ask(_GET)
        for header in ((b"x", b"y\r\nz: 1"), (b"x: 1\r\ny", b"z"))
    ]

    assert fine == b"HTTP/1.1 200 OK\r\nx-y: Z\r\ncontent-length: 4\r\n\r\nbody"
    assert all(answer.startswith(_FAILED) for answer in broken)
    assert all(answer.endswith(b"<closed>") for answer in broken)


@pytest.mark.parametrize("body", [b"sho", b"longer"])
async def test_an_answer_of_another_length_than_declared_ends_the_connection(body: bytes) -> None:
    answer = await Caller(sending({"body": body}, headers=[_LENGTH])).ask(_GET)

    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"<closed>")


async def test_an_application_that_fails_or_says_nothing_is_a_500() -> None:
    async def fail(*_: object) -> None:
        raise ValueError

    async def say_nothing(*_: object) -> None:
        """Return."""

    for app in (fail, say_nothing):
        answer = await Caller(app).ask(_GET)
        assert answer.startswith(_FAILED)
        assert answer.endswith(b"\r\n\r\nInternal Server Error<closed>")


async def test_a_client_sends_its_body_when_the_application_wants_it() -> None:
    received: list[Any] = []

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        received.append(await receive())
        await sending({"body": b"body"}, headers=[_LENGTH])(_scope, receive, send)

    caller = Caller(app)
    asked = await caller.ask(_POST + b"expect: 100-continue\r\n\r\n")
    answer = await caller.ask(b"text")

    assert asked == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert received == [{"type": "http.request", "body": b"text", "more_body": False}]
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")


async def test_everybody_who_waits_learns_that_the_client_left() -> None:
    told: list[str] = []

    async def app(_scope: Any, receive: Any, _send: Any) -> None:
        async def watch() -> None:
            told.append((await receive())["type"])

        await receive()
        await asyncio.gather(watch(), watch())

    caller = Caller(app)
    await caller.ask(_POST + b"\r\ntext")
    waiting = list(told)
    caller.connection.connection_lost(None)
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert (waiting, told) == ([], ["http.disconnect"] * 2)


async def test_the_scope_has_the_path_with_and_without_escapes() -> None:
    scopes: list[Any] = []

    async def app(scope: Any, _receive: Any, send: Any) -> None:
        scopes.append(scope)
        await sending({})(scope, _receive, send)

    await Caller(app).ask(_GET)

    (scope,) = scopes
    found = {name: scope[name] for name in ("path", "raw_path", "query_string", "headers")}
    assert found == {
        "path": "/path%2Fa b",
        "raw_path": b"/path%2Fa%20b",
        "query_string": b"c=d",
        "headers": [(b"host", b"h")],
    }


async def test_where_connections_close_the_last_of_several_answers_says_so() -> None:
    caller = Caller(sending({"body": b"body"}, headers=[_LENGTH]))
    caller.state.close_connections()

    answer = await caller.ask(_GET * 3)

    parts = answer.split(b"HTTP/1.1 200 OK\r\n")[1:]
    assert [b"connection: close\r\n" in part for part in parts] == [False, False, True]
    assert answer.endswith(b"<closed>")


async def test_a_client_that_does_not_know_chunks_gets_none() -> None:
    caller = Caller(sending({"body": b"one", "more_body": True}, {"body": b"two"}))

    answer = await caller.ask(_GET.replace(b"1.1", b"1.0"))

    assert answer.endswith(b"connection: close\r\n\r\nonetwo<closed>")
    assert b"transfer-encoding" not in answer


async def test_a_whole_answer_without_a_body_has_no_length() -> None:
    async def app(scope: Any, _receive: Any, _send: Any) -> None:
        await scope["extensions"][BUFFERED_HTTP].send(204, b"vary: Origin\r\n", b"")

    answer = await Caller(app).ask(_GET)

    assert answer == b"HTTP/1.1 204 No Content\r\nvary: Origin\r\n\r\n"


async def test_a_request_that_is_given_up_at_the_stop_gets_a_503() -> None:
    async def app(_scope: Any, _receive: Any, _send: Any) -> None:
        await asyncio.Event().wait()

    caller = Caller(app)
    await caller.ask(_GET)
    for task in tuple(caller.state.tasks):
        task.cancel()
    answer = await caller.ask(b"")

    assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert answer.endswith(b"\r\n\r\nService Unavailable<closed>")


async def test_what_is_cancelled_does_not_wait_for_a_client_that_reads_nothing() -> None:
    async def app(_scope: Any, _receive: Any, _send: Any) -> None:
        await asyncio.Event().wait()

    caller = Caller(app)
    await caller.ask(_GET)
    caller.connection.pause_writing()
    for task in tuple(caller.state.tasks):
        task.cancel()
    for _ in range(10):
        await asyncio.sleep(0)

    assert caller.transport.is_aborted
    assert not caller.state.tasks


async def test_a_failed_answer_that_ends_with_its_connection_does_not_seem_whole() -> None:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"part", "more_body": True})
        raise RuntimeError("a fault")

    caller = Caller(app)
    await caller.ask(_GET.replace(b"1.1", b"1.0"))

    assert caller.transport.is_aborted


async def test_a_stop_does_not_wait_for_the_rest_of_a_body_that_was_answered() -> None:
    caller = Caller(sending({"body": b"body"}, headers=[_LENGTH]))
    post = b"POST / HTTP/1.1\r\nhost: w\r\ncontent-length: 200\r\n\r\n"
    await caller.ask(post + bytes(100))

    caller.connection.shutdown()

    assert caller.transport.has_ended  # it lingers for what still comes


async def test_a_stop_does_not_wait_for_an_empty_line() -> None:
    caller = Caller(sending({"body": b"body"}, headers=[_LENGTH]))
    await caller.ask(_GET)
    caller.connection.is_ending = True  # as `shutdown` does where something is unread

    assert (await caller.ask(b"\r\n")).endswith(b"<closed>")


async def test_what_follows_a_trailer_that_ends_the_connection_is_dropped() -> None:
    caller = Caller(sending({"body": b"body"}, headers=[_LENGTH]))
    head = b"POST / HTTP/1.1\r\nhost: w\r\ntransfer-encoding: chunked\r\n\r\n"
    end = b"0\r\nconnection: close\r\n\r\n"

    answer = await caller.ask(head, end + b"x" * 4_000, b"x" * 96_000)

    assert answer.count(b"HTTP/1.1 ") == 1


async def test_a_head_that_has_begun_to_arrive_is_answered_at_the_stop() -> None:
    caller = Caller(sending({"body": b"body"}, headers=[_LENGTH]))
    await caller.ask(_GET[:10])

    caller.connection.shutdown()

    assert (await caller.ask(_GET[10:])).endswith(b"connection: close\r\n\r\nbody<closed>")


async def test_the_time_for_a_body_does_not_begin_before_its_turn() -> None:
    begun = asyncio.Event()

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await begun.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [_LENGTH]})
        await send({"type": "http.response.body", "body": b"body"})

    caller = Caller(app)
    caller.state.timeouts = ConnectionTimeouts(body=1.0)
    post = b"POST / HTTP/1.1\r\nhost: w\r\ncontent-length: 9000\r\n\r\n"
    await caller.ask(_GET + post + bytes(4_000))
    caller.connection.check(asyncio.get_running_loop().time() + 2.0)

    assert not caller.transport.is_aborted
