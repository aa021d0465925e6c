"""Speaks the protocol of `wire.protocol` without a model, and misbehaves on demand.

In a test's own event loop::

    async with StubBackend(backend_id="eu-1", region="eu") as stub:
        stub.behaviour = cut_after(3)
        ...  # calls to stub.url; stub.calls holds what arrived

As a process that can be killed or stopped: `testing.stub_process`.
Every item is answered with `{"echo": <its body>, "backend": <the backend's id>}`.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Self

import msgspec

from sluicegate.wire.protocol import (
    CALL_PATH,
    STATE_PATH,
    Call,
    Done,
    Failed,
    Frame,
    ModelInfo,
    Refusal,
    Report,
    ServingState,
    Task,
    encode_frame,
)
from testing.servers import close_server

_HEAD_END = b"\r\n\r\n"


def stub_model(name: str = "stub", *, revision: str = "aaaaaaaaaaaa") -> ModelInfo:
    """Return a model that has every task."""
    return ModelInfo(
        name=name,
        revision=revision,
        profile="fp32",
        tasks=list(Task),
        algorithm="echo",
        algorithm_version=1,
        labels=["a", "b"],
        max_tokens=128,
    )


def echo(call: Call, index: int, backend_id: str) -> Done:
    """Return the right answer to an item: the item's own body, and the backend's id."""
    body = msgspec.msgpack.decode(call.items[index].body)
    result = msgspec.json.encode({"echo": body, "backend": backend_id})
    return Done(index=index, result=result, rows=1, tokens=4)


class Reply:
    """A response in progress. A behaviour of the stub writes it."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._has_begun = False

    async def send(self, *frames: Frame) -> None:
        """Send frames, each in a separate chunk."""
        await self.send_raw(b"".join(_chunk(encode_frame(frame)) for frame in frames))

    async def send_raw(self, content: bytes) -> None:
        """Send raw bytes. The response's head is sent before the first bytes."""
        if not self._has_begun:
            self._has_begun = True
            content = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + content
        self._writer.write(content)
        await self._writer.drain()

    async def end(self, report: Report | None = None) -> None:
        """Send the load report and end the response."""
        await self.send(report or Report())
        await self.send_raw(b"0\r\n\r\n")

    async def whole(self, status: int, body: bytes) -> None:
        """Send a response that is not a stream of frames."""
        self._has_begun = True
        head = f"HTTP/1.1 {status} Status\r\ncontent-length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        await self._writer.drain()

    def cut(self) -> None:
        """Reset the connection."""
        self._writer.transport.abort()

    async def until_closed(self) -> None:
        """Wait until the client or the stub closes the connection, which cancels the behaviour."""
        await asyncio.Event().wait()


Behaviour = Callable[["StubBackend", Call, Reply], Awaitable[None]]


async def answer(stub: "StubBackend", call: Call, reply: Reply) -> None:
    """Answer every item immediately."""
    await reply.send(*(echo(call, index, stub.backend_id) for index in range(len(call.items))))
    await reply.end(stub.report)


async def answer_slowly(stub: "StubBackend", call: Call, reply: Reply) -> None:
    """Answer one item after another, each after five milliseconds."""
    for index in range(len(call.items)):
        await asyncio.sleep(0.005)
        await reply.send(echo(call, index, stub.backend_id))
    await reply.end(stub.report)


async def hang(stub: "StubBackend", call: Call, reply: Reply) -> None:
    """Accept the call and never answer."""
    await reply.until_closed()


def answer_when(gate: asyncio.Event, *, index: int | None = None) -> Behaviour:
    """Return a behaviour that answers when `gate` opens.

    With `index`, only this item waits for the gate. The other items are answered immediately.
    """

    async def behave(stub: "StubBackend", call: Call, reply: Reply) -> None:
        late = range(len(call.items)) if index is None else [index]
        soon = [n for n in range(len(call.items)) if n not in late]
        if soon:
            await reply.send(*(echo(call, n, stub.backend_id) for n in soon))
        await gate.wait()
        await reply.send(*(echo(call, n, stub.backend_id) for n in late))
        await reply.end(stub.report)

    return behave


def cut_after(answers: int) -> Behaviour:
    """Return a behaviour that answers `answers` items, then resets the connection."""

    async def behave(stub: "StubBackend", call: Call, reply: Reply) -> None:
        if answers:
            await reply.send(*(echo(call, index, stub.backend_id) for index in range(answers)))
        reply.cut()

    return behave


def refuse(code: str, *, status: int = 503) -> Behaviour:
    """Return a behaviour that refuses the call as a whole."""

    async def behave(stub: "StubBackend", call: Call, reply: Reply) -> None:
        refusal = Refusal(code=code, detail=f"refused: {code}", retryable=True)
        await reply.whole(status, msgspec.msgpack.encode(refusal))

    return behave


def fail_items(
    *indexes: int, code: str = "backend_error", status: int = 500, retryable: bool = True
) -> Behaviour:
    """Return a behaviour that fails these items immediately and answers the other items."""

    async def behave(stub: "StubBackend", call: Call, reply: Reply) -> None:
        for index in range(len(call.items)):
            if index in indexes:
                failed = Failed(
                    index=index, status=status, code=code, detail="it failed", retryable=retryable
                )
                await reply.send(failed)
            else:
                await reply.send(echo(call, index, stub.backend_id))
        await reply.end(stub.report)

    return behave


def _chunk(content: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(content), content)


class StubBackend:
    """An HTTP server on loopback; with a `certificate`, it uses TLS.

    A test can change all attributes while the server runs.
    """

    def __init__(
        self,
        *,
        backend_id: str = "stub",
        region: str = "eu",
        models: list[ModelInfo] | None = None,
        behaviour: Behaviour = answer,
        port: int = 0,
        path: str = "",
        host: str = "127.0.0.1",
        certificate: Path | None = None,
    ) -> None:
        self._host = host
        self._certificate = certificate
        self.path = path
        """The prefix of the protocol's paths."""
        self.backend_id = backend_id
        self.region = region
        self.models = [stub_model()] if models is None else models
        self.behaviour = behaviour
        self.report = Report()
        self.is_ready = True
        self.is_frozen = False
        """If true, the server accepts connections but answers nothing, not even its state."""
        self.is_reading = True
        """If false, the server accepts connections but reads nothing from them."""
        self.calls: list[Call] = []
        self.headers: list[dict[str, str]] = []
        self.probes = 0
        self.connections = 0
        """The number of connections that were ever accepted."""
        self.changed = asyncio.Condition()
        """Notified when a call, a probe or a connection comes or goes."""
        self.port = port
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        """The URL of the backend."""
        scheme = "http" if self._certificate is None else "https"
        return f"{scheme}://{self._host}:{self.port}{self.path}"

    @property
    def open_connections(self) -> int:
        """The number of open connections."""
        return len(self._open)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start to listen; after a stop, on the same port as before."""
        tls = None
        if self._certificate is not None:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(self._certificate)
        self._server = await asyncio.start_server(
            self._serve, self._host, self.port, backlog=1024, ssl=tls
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop as if the process were killed: close the listener and reset connections."""
        if self._server is None:
            return
        await close_server(self._server)
        for writer in self._open:
            writer.transport.abort()
        await self.wait_for(lambda: not self._open)
        self._server = None

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds. It is checked at every change of the stub."""
        async with asyncio.timeout(60.0), self.changed:
            await self.changed.wait_for(condition)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None or not self._server.is_serving():
            return writer.transport.abort()  # the connection was accepted while the server stopped
        self._open.add(writer)
        self.connections += 1
        await self._notify()
        try:
            if not self.is_reading:
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                await writer.wait_closed()
            await self._answer_all(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has disconnected
        finally:
            writer.transport.abort()
            self._open.remove(writer)
            await self._notify()

    async def _answer_all(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request after another. A disconnection cancels the answer in progress."""
        head = await reader.readuntil(_HEAD_END)
        while True:
            path, headers = _parse_head(head)
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            work = asyncio.create_task(
                self._answer(path.removeprefix(self.path), headers, body, Reply(writer))
            )
            following = asyncio.create_task(reader.readuntil(_HEAD_END))
            following.add_done_callback(partial(_cancel_if_failed, work))
            try:
                await asyncio.wait([work])
                if not work.cancelled():
                    work.result()
                head = await following
            finally:
                work.cancel()
                following.cancel()

    async def _answer(self, path: str, headers: dict[str, str], body: bytes, reply: Reply) -> None:
        if path == STATE_PATH:
            self.probes += 1
            await self._notify()
            if self.is_frozen:
                await reply.until_closed()
            await reply.whole(200, msgspec.msgpack.encode(self.state()))
        elif path == CALL_PATH:
            call = msgspec.msgpack.decode(body, type=Call)
            self.calls.append(call)
            self.headers.append(headers)
            await self._notify()
            await (hang if self.is_frozen else self.behaviour)(self, call, reply)
        else:
            await reply.whole(404, b"")

    def state(self) -> ServingState:
        """Return the backend's serving state."""
        return ServingState(
            backend_id=self.backend_id,
            region=self.region,
            ready=self.is_ready,
            missing=[] if self.is_ready else ["stub"],
            provider="StubExecutionProvider",
            models=self.models,
            report=self.report,
        )

    async def _notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()


def _parse_head(head: bytes) -> tuple[str, dict[str, str]]:
    first, *lines = head.decode("latin-1").strip().split("\r\n")
    pairs = (line.split(":", 1) for line in lines)
    return first.split(" ")[1], {name.lower().strip(): value.strip() for name, value in pairs}


def _cancel_if_failed(work: asyncio.Task[None], following: asyncio.Task[bytes]) -> None:
    if not following.cancelled() and following.exception() is not None:
        work.cancel()
