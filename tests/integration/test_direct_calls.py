"""Calls whose head repeats an earlier one are answered as the first, without ASGI."""

import asyncio
import gc
import time
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop

from sluicegate.backends.api.calls import CallHandler
from sluicegate.backends.api.direct_calls import DirectCall
from sluicegate.backends.api.server import BackendServer, bind
from sluicegate.backends.serving.call_work import CallWork
from sluicegate.backends.serving.core import ModelSetEntry, ServingCore
from sluicegate.wire.http.timeouts import ConnectionTimeouts
from sluicegate.wire.protocol import (
    CALL_PATH,
    TOKEN_HEADER,
    Call,
    Done,
    Failed,
    Frame,
    FrameReader,
    Refusal,
    Report,
    Task,
)
from testing.model_repository import DIMENSIONS, write_repository
from testing.raw_http import Connection, Response
from testing.waiting import WAIT_LIMIT, until
from tests.support.backend_calls import Backend, running_backend
from tests.support.executors import PacedExecutor
from tests.support.gate import Gate

pytestmark = pytest.mark.anyio
TOKEN = "sesame"


async def chunk_of(connection: Connection) -> bytes:
    """Return the next chunk of a body; an empty one is the last."""
    async with asyncio.timeout(WAIT_LIMIT):
        length = int(await connection.reader.readuntil(b"\r\n"), 16)
        return (await connection.reader.readexactly(length + 2))[:-2]


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    """The loop of the product."""
    return "asyncio", {"loop_factory": uvloop.new_event_loop}


class Server:
    """A backend that listens, whose batches wait at a gate."""

    def __init__(self, backend: Backend, server: BackendServer, gate: Gate, port: int) -> None:
        self.backend = backend
        self.server = server
        self.gate = gate
        self.port = port

    def request(self, call: Call, *, token: str = TOKEN) -> bytes:
        """Return a call as it travels."""
        body = msgspec.msgpack.encode(call)
        head = f"POST {CALL_PATH} HTTP/1.1\r\nhost: b\r\n{TOKEN_HEADER}: {token}\r\n"
        return b"%bcontent-length: %d\r\n\r\n%b" % (head.encode(), len(body), body)

    def classify(self, *texts: str, **changes: Any) -> bytes:
        """Return a call that classifies texts."""
        return self.request(self.backend.call("mood", Task.CLASSIFY, list(texts), **changes))


@asynccontextmanager
async def serving(folder: Path, **settings: Any) -> AsyncIterator[Server]:
    gate = Gate()
    executor = PacedExecutor(gate, dimensions=DIMENSIONS)
    models = write_repository(folder / "models")
    async with running_backend(models, executor, token=TOKEN, **settings) as backend:
        with bind("127.0.0.1", 0) as listener:
            server = BackendServer(backend.routes)
            running = asyncio.create_task(server.serve(listener))
            try:
                yield Server(backend, server, gate, listener.getsockname()[1])
            finally:
                gate.open()
                server.stop()
                await running


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with serving(tmp_path) as running:
        yield running


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch) -> list[DirectCall]:
    """Return the calls that are answered without ASGI."""
    found: list[DirectCall] = []
    begin = DirectCall.begin

    def record(call: DirectCall) -> None:
        if asyncio.current_task() is None:
            found.append(call)
        begin(call)

    monkeypatch.setattr(DirectCall, "begin", record)
    return found


def frames(response: Response) -> list[Frame]:
    return list(FrameReader().feed(response.body))


async def test_the_second_call_of_a_connection_is_answered_as_the_first(
    server: Server, direct: list[DirectCall]
) -> None:
    server.gate.open()
    async with Connection(server.port) as connection:
        responses = []
        for scope in ("a", "b"):
            await connection.send(server.classify("good film", scope=scope))
            responses.append(await connection.response())

    first, second = responses
    assert len(direct) == 1
    assert first.status == second.status == 200
    assert frames(first)[0] == frames(second)[0]
    assert server.backend.engine.calls_in_flight == 0


async def begun(server: Server, connection: Connection, text: str = "the first") -> None:
    """Have a connection's first call answered, which is parsed."""
    await connection.send(server.classify(text))
    server.gate.let_one_pass()
    assert (await connection.response()).status == 200


async def test_outcomes_are_sent_when_they_are_ready(
    server: Server, direct: list[DirectCall]
) -> None:
    async with Connection(server.port) as connection:
        await begun(server, connection)
        await connection.send(server.classify("good", "film", ""))
        status, headers = await connection.head()
        early = await chunk_of(connection)
        server.gate.open()
        later = b""
        while chunk := await chunk_of(connection):
            later += chunk
        await connection.send(server.classify("text"))
        following = await connection.response()

    refused, _ = FrameReader().feed(early)
    found = list(FrameReader().feed(later))
    assert (status, headers["transfer-encoding"]) == (200, "chunked")
    assert isinstance(refused, Failed)
    assert sum(isinstance(frame, Done) for frame in found) == 2
    assert isinstance(found[-1], Report)
    assert following.status == 200
    assert len(direct) == 2


async def test_outcomes_of_one_request_are_sent_together(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A machine that halts would end the wait of 50 ms.
    monkeypatch.setattr("sluicegate.backends.api.direct_calls._LONGEST_HOLD", 3600.0)
    async with Connection(server.port) as connection:
        await begun(server, connection)
        await connection.send(server.classify("the first", "good", atomic=True))
        await until(lambda: server.gate.arrived == 2)  # the other row is cached
        server.gate.open()
        response = await connection.response()

    assert "transfer-encoding" not in response.headers
    assert [type(frame) for frame in frames(response)] == [Done, Done, Report]


async def test_an_outcome_of_a_request_waits_for_the_others_for_a_moment_only(
    server: Server, direct: list[DirectCall]
) -> None:
    async with Connection(server.port) as connection:
        await begun(server, connection)
        await connection.send(server.classify("the first", "good", atomic=True))
        await connection.head()
        early = await chunk_of(connection)
        server.gate.open()
        later = await chunk_of(connection)

    assert isinstance(FrameReader().feed(early)[0], Done)
    assert isinstance(FrameReader().feed(later)[0], Done)
    assert direct[0]._is_over


@pytest.mark.parametrize("failing", ["", "bad"], ids=["at once", "after another has ended"])
async def test_a_failure_ends_the_wait_for_the_rest_of_a_request(
    failing: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluicegate.backends.api.direct_calls._LONGEST_HOLD", 3600.0)
    call = server.backend.call("mood", Task.CLASSIFY, ["the first", failing, "good"], atomic=True)
    call.items[1] = msgspec.structs.replace(call.items[1], remaining=0.2)
    async with Connection(server.port) as connection:
        await begun(server, connection)
        await connection.send(server.request(call))
        await connection.head()
        early = await chunk_of(connection)
        server.gate.open()
        await chunk_of(connection)

    assert {type(frame) for frame in FrameReader().feed(early)} >= {Done, Failed}


async def test_a_call_that_waits_while_batches_run_is_not_silent(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Connection(server.port) as connection, Connection(server.port) as other:
        await begun(server, connection)
        monkeypatch.setattr(server.backend.routes.calls._timer, "_interval", 0.01)
        await other.send(server.classify("good"))
        await until(lambda: server.gate.arrived == 2)
        await connection.send(server.classify("bad"))
        await until(lambda: server.backend.engine.report().queued_rows == 1)
        server.gate.let_one_pass()
        await connection.head()
        early = await chunk_of(connection)
        server.gate.open()
        later = await chunk_of(connection)

    (report,) = FrameReader().feed(early)
    assert isinstance(report, Report)
    assert later


async def test_a_call_that_was_answered_reports_no_more(
    server: Server, direct: list[DirectCall]
) -> None:
    """Its connection may carry the next answer by then."""
    server.gate.open()
    async with Connection(server.port) as connection, Connection(server.port) as other:
        for number, each in enumerate((connection, connection, other)):
            await each.send(server.classify(f"film {number}"))
            await each.response()
        server.backend.routes.calls._timer._on_timer()
        await connection.send(server.classify("good film"))
        response = await connection.response()

    assert len(direct) == 2
    assert [type(frame) for frame in frames(response)] == [Done, Report]


async def test_the_row_of_a_caller_that_left_never_runs(server: Server) -> None:
    engine = server.backend.engine
    async with Connection(server.port) as connection, Connection(server.port) as gone:
        await begun(server, connection)
        await begun(server, gone, "the other")
        await connection.send(server.classify("good"))
        await until(lambda: server.gate.arrived == 3)
        await gone.send(server.classify("bad", "film"))
        await until(lambda: engine.report().queued_rows == 2)

        gone.reset()
        await until(lambda: engine.calls_in_flight == 1)
        server.gate.open()
        response = await connection.response()

    assert isinstance(frames(response)[0], Done)
    assert server.gate.arrived == 3
    assert engine.report().queued_rows == 0
    assert server.backend.batchers[0].admission.reserved == pytest.approx(0.0)


async def test_a_refused_call_is_answered_and_its_connection_kept(
    server: Server, direct: list[DirectCall]
) -> None:
    server.gate.open()
    call = server.backend.call("mood", Task.CLASSIFY, ["good"], revision="0" * 12)
    async with Connection(server.port) as connection:
        await begun(server, connection)
        await connection.send(server.request(call))
        refused = await connection.response()
        await connection.send(server.classify("good"))
        following = await connection.response()

    assert refused.status == 409
    assert msgspec.msgpack.decode(refused.body, type=Refusal).code == "revision_mismatch"
    assert (following.status, len(direct)) == (200, 1)


async def test_what_comes_behind_a_call_is_answered_after_it(
    server: Server, direct: list[DirectCall]
) -> None:
    async with Connection(server.port) as connection:
        await begun(server, connection)
        await connection.send(server.classify("good"), server.classify("bad", "film"))
        server.gate.open()
        responses = [await connection.response(), await connection.response()]

    assert [len(frames(response)) for response in responses] == [2, 3]
    assert len(direct) == 2


async def test_other_algorithms_and_strangers_are_answered_by_asgi(
    server: Server, direct: list[DirectCall], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.gate.open()
    opened: list[str] = []
    admit = ServingCore.admit

    def record(
        self: ServingCore, call: Call, *, has_waited: bool = False
    ) -> tuple[ModelSetEntry, CallWork]:
        opened.append(call.model)
        return admit(self, call, has_waited=has_waited)

    monkeypatch.setattr(ServingCore, "admit", record)
    review = server.backend.call("reviewer", Task.INFER, ["good film"])
    async with Connection(server.port) as connection, Connection(server.port) as stranger:
        await begun(server, connection)
        await connection.send(server.request(review))
        answered = await connection.response()
        for _ in range(2):
            await stranger.send(server.request(review, token="wrong"))
            assert (await stranger.response()).status == 401

    assert isinstance(frames(answered)[0], Done)
    assert not direct
    assert opened == ["mood", "reviewer"]


async def test_nothing_is_kept_of_a_caller_that_left_before_its_call_was_answered(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[weakref.ref[CallWork]] = []
    admit, begin = ServingCore.admit, CallHandler.begin

    def record(
        self: ServingCore, call: Call, *, has_waited: bool = False
    ) -> tuple[ModelSetEntry, CallWork]:
        entry, work = admit(self, call, has_waited=has_waited)
        opened.append(weakref.ref(work))
        return entry, work

    def begin_and_leave(self: CallHandler, body: bytes, exchange: Any, *rest: Any) -> Any:
        exchange._line.give_up()
        return begin(self, body, exchange, *rest)

    review = server.backend.call("reviewer", Task.INFER, ["good film"])
    async with Connection(server.port) as connection:
        await begun(server, connection)
        monkeypatch.setattr(ServingCore, "admit", record)
        monkeypatch.setattr(CallHandler, "begin", begin_and_leave)
        await connection.send(server.request(review))
        await until(lambda: bool(opened and gc.collect() >= 0 and opened[0]() is None))


async def test_the_answer_of_a_backend_that_stops_is_the_last_of_its_connection(
    server: Server, direct: list[DirectCall]
) -> None:
    async with Connection(server.port) as connection, Connection(server.port) as other:
        await begun(server, connection)
        await begun(server, other, "the other")
        await connection.send(server.classify("good"))
        await until(lambda: server.backend.engine.calls_in_flight == 1)
        for each in list(server.server.state.connections):
            each.shutdown()
        server.gate.open()
        last = await connection.response()

        assert last.headers["connection"] == "close"
        assert await connection.is_closed()
        assert await other.is_closed()
    assert len(direct) == 1


async def test_an_idle_connection_is_closed_and_one_in_use_is_not(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeouts = ConnectionTimeouts(idle=0.3)
    monkeypatch.setattr(server.server.state, "timeouts", timeouts)
    monkeypatch.setattr("sluicegate.wire.http.server._CHECK_INTERVAL", 0.05)
    async with Connection(server.port) as connection:
        await begun(server, connection)
        await connection.send(server.classify("good"))
        await until(lambda: server.backend.engine.calls_in_flight == 1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await connection.head()
        server.gate.open()

        assert (await connection.response()).status == 200
        assert await connection.is_closed()


@pytest.mark.parametrize(("lane", "reports"), [("bulk", [True]), ("interactive", [False])])
async def test_a_call_in_a_bulk_pause_reports_that_it_does_not_hang(
    lane: str, reports: list[bool], server: Server, direct: list[DirectCall]
) -> None:
    """Reports of an interactive call would hide that its backend hangs."""
    server.gate.open()
    device = server.backend.engine._device
    async with Connection(server.port) as connection:
        await begun(server, connection)
        device.bulk.until = time.monotonic() + 60.0
        with device._changed:  # no batch begins meanwhile
            await connection.send(server.classify("bad film", lane=lane))
            await until(lambda: server.backend.engine.report().queued_rows == 1)

            direct[0]._reply.report()

    assert [call._reply.exchange._is_chunked for call in direct] == reports
