"""Connects to both entry points of a worker without sockets and generates seeded traffic."""

import asyncio
import random
import re
from functools import partial
from typing import Any

import msgspec
from typing_extensions import override

from sluicegate.gateway.api.fast_path.front import FastPathFront
from sluicegate.gateway.config.document import DeadlineConfig, LimitsConfig, RequestConfig
from sluicegate.gateway.http.side import GatewaySide
from sluicegate.gateway.telemetry.tracing import Tracer
from sluicegate.gateway.types import Rule
from sluicegate.wire.http.connection import Connection, ServerState
from sluicegate.wire.http.timeouts import ConnectionTimeouts
from tests.support.api import KEY, NARROW_KEY, Api

HALF_CLOSE = b"<the caller closes its half>"
"""Stands for a part that is no bytes: the caller says that it sends no more."""
_UNLIKE = re.compile(rb"req_[0-9a-f]+|dur=[0-9.]+")
_DATE = b"date: Sat, 21 Nov 2026 08:00:00 GMT\r\n"
_RULES = (
    Rule(name="minute", unit="requests", capacity=60, window=60.0),
    Rule(name="items", unit="items", capacity=200, window=60.0),
)


def ask(text: str) -> bytes:
    """Return a plain request about one text."""
    body = msgspec.json.encode({"model": "sentiment", "input": text})
    head = f"POST /v1/classify HTTP/1.1\r\nhost: w\r\nauthorization: Bearer {KEY}\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


class RecordedTransport(asyncio.Transport):
    """Records writes. A peer that does not read is one whose protocol is paused."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.writes = 0
        self.reads = True
        self.has_ended = False
        self.unsent_bytes = 0
        self.is_aborted = False
        self._closing = False

    @override
    def write(self, data: Any) -> None:
        if self.has_ended:
            raise RuntimeError("a transport takes nothing after its end")
        self.written += data
        self.writes += 1

    @override
    def close(self) -> None:
        self._closing = True

    @override
    def can_write_eof(self) -> bool:
        return True

    @override
    def write_eof(self) -> None:
        self.has_ended = True

    @override
    def abort(self) -> None:
        self._closing = self.is_aborted = True

    @override
    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    @override
    def is_closing(self) -> bool:
        return self._closing

    @override
    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    @override
    def pause_reading(self) -> None:
        self.reads = False

    @override
    def resume_reading(self) -> None:
        self.reads = True


class EntryPoint:
    """A worker of its own behind the application or the fast path."""

    def __init__(self, *, fast: bool, tracer: Tracer | None = None) -> None:
        self.api = Api(tracer)
        self.api.configure(
            limits=LimitsConfig(tenant=_RULES),
            request=RequestConfig(max_body_bytes=1_500, max_items=4),
            # On a busy machine, a request that comes byte by byte takes long.
            deadline=DeadlineConfig(default=600.0, maximum=600.0),
        )
        side = GatewaySide(new_id=self.api.ids.new)
        if fast:
            side = GatewaySide(
                new_id=self.api.ids.new,
                make_front=partial(FastPathFront, self.api.fast_path),
                coalescer=self.api.fast_path.coalescer,
            )
        self.state = ServerState(self.api.routed(), side, ConnectionTimeouts())
        self.state.default_lines = _DATE
        self.connect()

    def connect(self) -> None:
        """Open a new connection."""
        self.transport = RecordedTransport()
        self.protocol = Connection(self.state)
        self.protocol.connection_made(self.transport)

    async def send(self, *parts: bytes) -> bytes:
        """Return what is answered to `parts`; ids and durations left out."""
        for part in parts:
            if part is HALF_CLOSE and not self.transport.is_closing():
                self.protocol.eof_received()
            elif not self.transport.is_closing():
                self.protocol.data_received(part)
            await self.rest()
        answer = bytes(self.transport.written)
        self.transport.written.clear()
        if self.transport.is_closing() or self.transport.has_ended:
            self.leave()
            self.connect()
            answer += b"<closed>"
        return _UNLIKE.sub(b"", answer)

    def leave(self) -> None:
        """End the connection."""
        self.protocol.connection_lost(None)

    async def rest(self) -> None:
        """Run the event loop until nothing more happens."""
        quiet = written = 0
        for _ in range(200):
            await asyncio.sleep(0)
            # Connections are among them while they wait for a backend without a task.
            tasks = self.state.tasks
            waiting = [t for t in tasks if not (isinstance(t, asyncio.Task) and t.done())]
            quiet = 0 if waiting or len(self.transport.written) > written else quiet + 1
            written = len(self.transport.written)
            if quiet > 2:
                return

    def events(self) -> list[tuple[Any, ...]]:
        """Return the events so far, without ids and times, and forget them."""
        found = [
            (e.tenant, e.key, e.model, e.task, e.status, e.usage, e.revision, e.code)
            for e in self.api.events.events
            for _ in range(e.count)
        ]
        self.api.events.events.clear()
        return found


class Traffic:
    """Generates requests of every kind by a seed, each as the parts in which its bytes arrive."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._count = 0

    def next(self) -> list[bytes]:
        """Return the next request, or some at once."""
        parts = self._parts()
        if self._random.random() < 0.03:
            parts.append(HALF_CLOSE)
        return parts

    def _parts(self) -> list[bytes]:
        chance = self._random.random()
        if chance < 0.15:
            return [b"".join(self._whole() for _ in range(self._random.randint(2, 6)))]
        if chance < 0.19:
            return self._cut(self._whole() + self._upgrading() + self._whole())
        if chance < 0.25:
            return self._cut(self._whole())
        if chance < 0.32:
            return self._chunked()
        if chance < 0.38:
            return [self._malformed()]
        return [self._whole()]

    def advance(self) -> float:
        """Return the seconds until the next one: most come in a burst."""
        return self._random.choice([0.0] * 8 + [0.3, 2.0])

    def _whole(self) -> bytes:
        body = self._body()
        length = b"content-length: %d" % len(body)
        return self._head([length], usual=self._random.random() < 0.7) + body

    def _cut(self, whole: bytes) -> list[bytes]:
        if self._random.random() < 0.5:
            head, _, body = whole.partition(b"\r\n\r\n")
            return [head + b"\r\n\r\n", body]
        places = sorted(self._random.sample(range(len(whole)), k=self._random.randint(1, 4)))
        return [whole[a:b] for a, b in zip([0, *places], [*places, len(whole)], strict=True)]

    def _chunked(self) -> list[bytes]:
        body = self._body()
        middle = self._random.randint(0, len(body))
        pieces = [piece for piece in (body[:middle], body[middle:]) if piece]
        parts = [self._head([b"transfer-encoding: chunked"], usual=True)]
        parts += [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces]
        trailer = b"connection: close\r\n" * (len(body) % 8 == 0)
        parts.append(b"0\r\n%b\r\n" % trailer)
        return [b"".join(parts)] if self._random.random() < 0.5 else parts

    def _upgrading(self) -> bytes:
        """Return a request that offers another protocol, which nobody takes up."""
        body = self._body()
        upgrade = self._random.choice(
            [
                b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk",
                b"upgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-version: 13",
                b"connection: upgrade\r\nupgrade: tls/1.0, h2c\r\nconnection: keep-alive",
            ]
        )
        if self._random.random() < 0.3:
            framed = b"%x;a=b\r\n%b\r\n0\r\nx: y\r\n\r\n" % (len(body), body)
            framed = framed if body else b"0\r\n\r\n"
            return self._head([upgrade, b"transfer-encoding: chunked"], usual=True) + framed
        return self._head([upgrade, b"content-length: %d" % len(body)], usual=True) + body

    def _malformed(self) -> bytes:
        body = self._body()
        size = len(body)
        plain = (
            b"POST /v1/classify HTTP/1.1\r\nhost: w\r\nauthorization: Bearer %b\r\n" % KEY.encode()
        )
        return self._random.choice(
            [
                b"NONSENSE\r\n\r\n",
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
                b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
                b"CONNECT example.com:443 HTTP/1.1\r\nhost: example.com:443\r\n\r\n",
                plain.replace(b"HTTP/1.1", b"HTTP/2.0") + b"content-length: 0\r\n\r\n",
                plain.replace(b"host: w\r\n", b"") + b"content-length: %d\r\n\r\n" % size + body,
                plain + b"host: w\r\ncontent-length: %d\r\n\r\n" % size + body,
                plain.replace(b": w", b": w/x") + b"content-length: %d\r\n\r\n" % size + body,
                plain + b"x: y\r\n" * 98 + b"content-length: %d\r\n\r\n" % size + body,
                plain + b"x: %b\r\ncontent-length: %d\r\n\r\n" % (b"y" * 65_000, size) + body,
                plain + b"x: " + b"y" * 100_000,
                plain + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
                plain + b"transfer-encoding: gzip\r\n\r\n",
                plain + b"transfer-encoding: chunked\r\n\r\n1;" + b"x" * 50_000,
                plain.replace(b"/1.1", b"/1.0") + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
                b"POST /v1/classify\r\n\r\n",
                plain + b"content-length: -1\r\n\r\n" + body,
                plain + b"content-length: 1x\r\n\r\n" + body,
                plain + b"content-length: %d\r\ncontent-length: %d\r\n\r\n" % (size, size) + body,
                plain + b"content-length: %d\r\ntransfer-encoding: chunked\r\n\r\n" % size + body,
                plain + b"bad header\r\ncontent-length: %d\r\n\r\n" % size + body,
                plain + b"x y: z\r\ncontent-length: %d\r\n\r\n" % size + body,
                plain + b" folded\r\ncontent-length: %d\r\n\r\n" % size + body,
                plain.replace(b"\r\n", b"\n") + b"content-length: %d\n\n" % size + body,
                plain + b"content-length: %d\r\nx: \x00\r\n\r\n" % size + body,
                b"\r\n\r\n" + plain + b"content-length: %d\r\n\r\n" % size + body,
                plain + b"content-length: 0\r\n\r\n",
                plain + b"content-length: 99999\r\nexpect: 100-continue\r\n\r\n",
                plain + _CHUNKED + b"no chunk\r\n",
                plain + b"expect: 100-continue\r\n" + _CHUNKED + b"5\r\nabcdefgh\r\n",
            ]
        )

    def _head(self, framing: list[bytes], *, usual: bool) -> bytes:
        pick = self._random.choice
        line = b"POST /v1/classify HTTP/1.1"
        lines = [b"host: w", b"authorization: " + _BEARER, *framing]
        if not usual:
            key = pick(
                [
                    b"Bearer " + NARROW_KEY.encode(),
                    b"Bearer sk-nobody-has-this-one",
                    b"Basic",
                    b"",
                    _BEARER + b"\r\nauthorization: " + _BEARER,
                    b"Basic YTpi\r\nauthorization: " + _BEARER,
                ]
            )
            lines[1] = pick(
                [lines[1], b"Authorization: " + key, b"AUTHORIZATION:  bearer " + KEY.encode()]
            )
            lines.append(pick(_EXTRAS))
            lines.append(pick(_EXTRAS))
            line = pick([line, line, line, *_LINES])
            self._random.shuffle(lines)
        return b"\r\n".join([line, *lines]) + b"\r\n\r\n"

    def _body(self) -> bytes:
        pick = self._random.choice
        self._count += 1
        text = f"text {self._random.randrange(30)}"
        if self._random.random() < 0.1:
            text = f"new {self._count}"
        if self._random.random() < 0.75:
            return msgspec.json.encode({"model": "sentiment", "input": text})
        texts: list[Any] = [text, f"text {self._random.randrange(30)}", "text 1"]
        valid = {"model": "sentiment", "input": texts}
        return pick(
            [
                msgspec.json.encode(valid),
                msgspec.json.encode(valid | {"top_k": 1, "on_error": "continue"}),
                msgspec.json.encode(valid | {"input": [[text, "and a pair"]]}),
                msgspec.json.encode(valid | {"input": []}),
                msgspec.json.encode(valid | {"input": texts * 2}),
                msgspec.json.encode(valid | {"input": text * 300}),
                msgspec.json.encode(valid | {"model": "unknown"}),
                msgspec.json.encode(valid | {"temperature": 1}),
                msgspec.json.encode(valid)[:-1],
                b'{"model": "sentiment", "input": "\xff\xfe"}',
                b"[" * 400,
                b" " + msgspec.json.encode({"input": text, "model": "sentiment"}),
                b"",
            ]
        )


_CHUNKED = b"transfer-encoding: chunked\r\n\r\n"
_BEARER = b"Bearer " + KEY.encode()
_EXTRAS = [
    b"accept: */*",
    b"cache-control: no-cache",
    b"cache-control: no-store",
    b"cache-control: only-if-cached",
    b"cache-control: max-age=1",
    b"cache-control: max-stale",
    b"cache-control: max-stale=1, max-age=9",
    b"cache-control: max-stale=x",
    b"Cache-Control: max-age=x",
    b"x-request-timeout: 5",
    b"x-request-timeout: soon",
    b"x-server-timing: 1",
    b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    b"connection: close",
    b"connection: keep-alive",
    b"expect: 100-continue",
    b"upgrade: h2c",
    b"cache-control: max-age=9\r\ncache-control: no-store",
    b"user-agent: a client of some length/1.2.3",
]
_LINES = [
    b"POST /v1/classify HTTP/1.0",
    b"POST /v1/classify?a=b HTTP/1.1",
    b"POST /v1/classify/ HTTP/1.1",
    b"POST /v1/embed HTTP/1.1",
    b"POST /v1/%63lassify HTTP/1.1",
    b"POST /v1%2Fclassify HTTP/1.1",
    b"POST http://w/v1/classify HTTP/1.1",
    b"OPTIONS * HTTP/1.1",
    b"POST /v1/nothing HTTP/1.1",
    b"PUT /v1/classify HTTP/1.1",
    b"GET /v1/classify HTTP/1.1",
    b"HEAD /v1/classify HTTP/1.1",
    b"post /v1/classify HTTP/1.1",
    b"POST  /v1/classify HTTP/1.1",
]
