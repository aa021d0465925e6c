"""Generates valid requests in every spelling that RFC 9112 allows, with expected responses.

After each request, the connection stays open.
"""

import random
from collections.abc import Sequence
from typing import Any  # Any: fields of an expectation

import msgspec

from loadtests.fuzz_http.callers import Caller, RequestBody, body
from loadtests.fuzz_http.expect import ExpectedResponse

_CLASSIFY = b"/v1/classify"
_BENIGN = (
    b"Accept: */*",
    b"accept-encoding: gzip, br",
    b"User-Agent: fuzz/1.0 (a comment)",
    b"X-Server-Timing: 1",
    b"X-Request-Timeout: 30",
    b"Sluicegate-Criticality: sheddable",
    b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    b"Cookie: a=b; c=d",
    b"X-Empty:",
    b"X-Odd: \x80\xff\t obs-text",
    b"Connection: keep-alive",
    b"TE: trailers",
    b"Forwarded: for=10.0.0.1",
    b"X-Forwarded-For: 127.0.0.1",
    b"Transfer-Coding: chunked",
    b"Content-Type: application/json",
    b"Content-Type: text/plain",
    b"Cache-Control: max-age=600",
    b"Cache-Control: no-store",
    b"Cache-Control: no-cache",
)
_UPGRADES = (
    (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAARAAAAA"),
    (b"Connection: upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Version: 13"),
    (b"Upgrade: TLS/1.0", b"Connection: Upgrade"),
)
_ROUTES = (
    (b"/v1/models", 200),
    (b"/v1/models/stub", 200),
    (b"/v1/models/nothing", 404),
    (b"/health/live", 200),
    (b"/health/ready?verbose", 200),
    (b"/v1/nothing", 404),
    (b"/", 200),
)
# The right statuses of each target. A server may treat several slashes as one.
_TARGETS: tuple[tuple[bytes, *tuple[int, ...]], ...] = (
    (b"/v1/classify?", 200),
    (b"/v1/classify?model=x&model=y%20", 200),
    (b"http://fuzz/v1/classify", 200),
    (b"HTTP://fuzz:80/v1/classify?a", 200),
    (b"/v1/classif%79", 200),
    (b"/v1/classify/", 200, 404),
    (b"//v1/classify", 200, 404),
    (b"/v1//classify", 200, 404),
    (b"/v1%2fclassify", 404),
    (b"/v1/classify%00", 404),
    (b"/v1/./classify", 404),
    (b"/V1/classify", 404),
    (b"/v1/inferno", 404),
    (b"/" + b"a" * 3000, 404),
)


class Request(msgspec.Struct, frozen=True):
    """The bytes of a request with its expected response.

    The last request of a connection may be sent slowly. A half-close or a reset may follow it.
    """

    content: bytes
    expect: ExpectedResponse
    half_closes: bool = False
    resets: bool = False
    pace: tuple[int, float] = (0, 0.0)
    """How many bytes to send at a time (0: all), and the seconds between them."""


class ValidRequestGenerator:
    """Generates the valid requests of one connection."""

    def __init__(self, chance: random.Random, callers: list[Caller], connection: int) -> None:
        self._chance = chance
        self._callers = callers
        self._connection = connection
        self._count = 0

    def next(self) -> Request:
        """Return the next request, in most cases a plain one."""
        if self._chance.random() < 0.6:
            return self.plain()
        makers = [
            self.plain,
            self.spelled,
            self.chunked,
            self.upgrade,
            self.unknown_key,
            self.other_route,
            self.other_method,
            self.other_target,
        ]
        return self._chance.choice(makers)()

    def caller(self) -> Caller:
        """Return the next caller."""
        return self._chance.choice(self._callers)

    def body(self) -> RequestBody:
        """Return the next body."""
        self._count += 1
        return body(self._chance, f"{self._connection}-{self._count}")

    def plain(self) -> Request:
        """Return a request as most clients send it."""
        caller, sent = self.caller(), self.body()
        content = (
            b"POST /v1/classify HTTP/1.1\r\nHost: fuzz\r\nAuthorization: Bearer %b\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (caller.key.encode(), len(sent.content), sent.content)
        )
        return Request(content, inference_response("plain", caller, sent))

    def spelled(self) -> Request:
        """Return a plain request in an unusual spelling."""
        caller, sent = self.caller(), self.body()
        more = self._chance.sample(_BENIGN, k=self._chance.randint(0, 5))
        content = self.post(sent.content, sized(sent.content), *more, caller=caller)
        if self._chance.random() < 0.1:
            content = b"\r\n" + content  # RFC 9112, 2.2
        return Request(content, inference_response("spelled", caller, sent))

    def chunked(self) -> Request:
        """Return a request with a chunked body."""
        caller, sent = self.caller(), self.body()
        chunks = self.in_chunks(sent.content)
        content = self.post(chunks, b"Transfer-Encoding: chunked", caller=caller)
        return Request(content, inference_response("chunked", caller, sent))

    def upgrade(self) -> Request:
        """Return a request that offers an upgrade, which is ignored (RFC 9110, 7.8)."""
        caller, sent = self.caller(), self.body()
        lines = *self._chance.choice(_UPGRADES), sized(sent.content)
        content = self.post(sent.content, *lines, caller=caller)
        return Request(content, inference_response("upgrade", caller, sent))

    def unknown_key(self) -> Request:
        """Return a request with an unknown key."""
        content, key = self.body().content, self.caller().key.encode()
        who = self._chance.choice(
            [
                b"Authorization: Bearer sk-%032x" % self._chance.getrandbits(128),
                b"Authorization: Basic c2stYTpi",
                b"Authorization: Bearer",
                b"Authorization:",
                b"X-Authorization: Bearer " + key,
                b"Authorization: Bearer " + key[:-1],
            ]
        )
        head = self.head(b"POST", _CLASSIFY, [b"Host: fuzz", who, sized(content)])
        return Request(head + content, plain_response("unknown key", 401))

    def other_route(self) -> Request:
        """Return a request to a read-only route."""
        path, status = self._chance.choice(_ROUTES)
        method = self._chance.choice([b"GET", b"GET", b"HEAD"])
        head = self.head(method, path, self.lines(self.caller()))
        return Request(head, plain_response("other route", status, to_head=method == b"HEAD"))

    def other_method(self) -> Request:
        """Return a request to an inference route with an unsupported method."""
        method = self._chance.choice([b"GET", b"PUT", b"DELETE", b"PATCH", b"OPTIONS", b"HEAD"])
        head = self.head(method, _CLASSIFY, [*self.lines(self.caller()), b"Content-Length: 0"])
        return Request(head, plain_response("method", 405, to_head=method == b"HEAD"))

    def other_target(self) -> Request:
        """Return a request with another spelling of its target, or an unknown route."""
        caller, sent = self.caller(), self.body()
        target, *statuses = self._chance.choice(_TARGETS)
        content = self.post(sent.content, sized(sent.content), caller=caller, target=target)
        return Request(content, inference_response("target", caller, sent, *statuses))

    def post(
        self,
        content: bytes,
        *lines: bytes,
        caller: Caller | None = None,
        target: bytes = _CLASSIFY,
        hosts: Sequence[bytes] = (b"Host: fuzz",),
    ) -> bytes:
        """Return a request with these header lines, which must frame the content."""
        key = self.lines(caller or self.caller())[1:]
        return self.head(b"POST", target, [*hosts, *key, *lines]) + content

    def lines(self, caller: Caller) -> list[bytes]:
        """Return the header lines that every request has."""
        scheme = self._chance.choice([b"Bearer ", b"Bearer ", b"bearer ", b"BEARER ", b"Bearer  "])
        return [b"Host: fuzz", b"Authorization: " + scheme + caller.key.encode()]

    def head(self, method: bytes, target: bytes, lines: list[bytes]) -> bytes:
        """Return a head with its lines in random order and its names in random case."""
        chance = self._chance
        lines = [self._spelled(line) for line in lines]
        chance.shuffle(lines)
        return b"\r\n".join([b"%b %b HTTP/1.1" % (method, target), *lines]) + b"\r\n\r\n"

    def in_chunks(self, content: bytes) -> bytes:
        """Return `content` as chunks of random sizes and spellings."""
        chance = self._chance
        parts: list[bytes] = []
        while content:
            size = chance.randint(1, len(content))
            form = chance.choice([b"%x", b"%X", b"00%x", b"%x;a=b", b'%x;a="b c"'])
            parts.append(form % size + b"\r\n" + content[:size] + b"\r\n")
            content = content[size:]
        trailers = chance.choice([b"", b"", b"X-Trailer: 1\r\n", b"Authorization: Bearer x\r\n"])
        return (
            b"".join(parts) + chance.choice([b"0", b"000", b"0;a"]) + b"\r\n" + trailers + b"\r\n"
        )

    def _spelled(self, line: bytes) -> bytes:
        chance = self._chance.random()
        name, _, value = line.partition(b":")
        if chance < 0.2:
            name = name.upper()
        elif chance < 0.4:
            name = name.lower()
        if chance < 0.1:
            value = b"\t " + value.strip() + b"  "
        elif chance < 0.2:
            value = value.strip()
        return name + b":" + value


def sized(content: bytes) -> bytes:
    """Return the header line with the length of the content."""
    return b"Content-Length: %d" % len(content)


def inference_response(
    name: str, caller: Caller, sent: RequestBody, *statuses: int, **more: Any
) -> ExpectedResponse:
    """Return the expected answer to `sent`: 200 with results for `caller`, or one of `statuses`."""
    return ExpectedResponse(
        name=name,
        statuses=frozenset(statuses or (200,)),
        scope=caller.scope,
        texts=sent.texts,
        continues=sent.continues,
        **more,
    )


def plain_response(name: str, *statuses: int, **more: Any) -> ExpectedResponse:
    """Return an expected response with one of `statuses` and without results."""
    return ExpectedResponse(name=name, statuses=frozenset(statuses), is_inference=False, **more)
