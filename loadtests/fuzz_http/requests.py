"""Makes HTTP requests: valid in every spelling of RFC 9112, or such that they end a connection.

Requests that end a connection are invalid, ambiguous, too large, truncated, or not HTTP. Each
request comes with its expected response.
"""

import random
from collections.abc import Callable, Collection
from typing import Any  # Any: fields of an expectation

import msgspec

from loadtests.fuzz_http.bodies import Caller, RequestBody, body, is_json, mutated, mutated_json
from loadtests.fuzz_http.expect import ExpectedResponse

MAX_BODY_BYTES = 64 * 1024
MAX_ITEMS = 2048
_CLASSIFY = b"POST /v1/classify HTTP/1.1"
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
_HEAD_BYTES, _HEAD_FIELDS = 64 * 1024, 100
"""The limits of a head. The gateway refuses a larger head."""
# The statuses that any request may get: all except 500 and timeouts.
_LENIENT = frozenset(
    {200, 400, 401, 403, 404, 405, 408, 411, 413, 414, 415, 417, 422, 431, 501, 505}
)
# `|` separates lines.
_FRAMINGS = (
    "Content-Length: {size}|Transfer-Encoding: chunked",
    "Transfer-Encoding: chunked|Content-Length: {both}",
    "Content-Length: {size}|Content-Length: {more}",
    "Content-Length: {size}, {more}",
    "Content-Length: -{size}",
    "Content-Length: +{size}",
    "Content-Length: 0x{size:x}",
    "Content-Length: {size} {size}",
    "Content-Length: 1000000000000000000000000000000",
    "Content-Length:",
    "Content-Length: {size};a",
    "Content-Length: \xb2",
    "Transfer-Encoding: xchunked",
    "Transfer-Encoding: chunked, chunked",
    "Transfer-Encoding: chunked, gzip",
    "Transfer-Encoding: \x0bchunked",
    "Transfer-Encoding: identity|Content-Length: {size}",
)
_CHUNKS = (
    b"zz\r\n{}\r\n0\r\n\r\n",
    b"-1\r\n{}\r\n0\r\n\r\n",
    b"ffffffffffffffffff\r\n{}\r\n0\r\n\r\n",
    b"2\r\n{}}\r\n0\r\n\r\n",
    b"2 {}\r\n0\r\n\r\n",
    b"0x2\r\n{}\r\n0\r\n\r\n",
    b"\r\n2\r\n{}\r\n0\r\n\r\n",
)
_NO_FIELDS = (
    *(b"No-Colon", b": no name", b"Sp ace: 1", b"Space-Before : 1", b"X-Nul: a\x00b"),
    *(b"X-CR: a\rb", b"X(Y): 1", b"\x80: 1"),
)
_TAB = b"X-Tab: a"
# A server may join a folded line to the line before it, and may keep control characters (RFC 9112,
# 5.2; RFC 9110, 5.5). After `_TAB`, a tab ends the length; the parser keeps it, which is invalid.
_ODD_FIELDS = (b"X-Folded: a\r\n b", b"X-Bell: \x07", _TAB)
_REQUEST_LINES = (
    b"POST * HTTP/1.1",
    b"POST /v1/classify",
    b"POST  /v1/classify HTTP/1.1",
    b"POST /v1/classify HTTP/1.1 ",
    b"POST /v1/cl assify HTTP/1.1",
    b"post /v1/classify HTTP/1.1",
    b"FETCH /v1/classify HTTP/1.1",
    b"CONNECT fuzz:80 HTTP/1.1",
    b"POST fuzz:80 HTTP/1.1",
    b"POST v1/classify HTTP/1.1",
    b"POST /v1/classify#a HTTP/1.1",
    b"POST /v1/classif\xff HTTP/1.1",
    b"POST http://[::1 HTTP/1.1",
    b"POST http:///v1/classify HTTP/1.1",
    b"POST /%zz HTTP/1.1",
    b"TRACE /v1/classify HTTP/1.1",
    b"OPTIONS * HTTP/1.1",
    b"POST /../../etc/passwd HTTP/1.1",
)
_OTHER_PROTOCOLS = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03%b",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n%b",
    b"SSH-2.0-OpenSSH_9.6\r\n",
    b"*1\r\n$4\r\nPING\r\n",
    b"\x00" * 64,
    b"\r\n" * 200,
    b"%b",
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


class RequestGenerator:
    """Generates the requests of one connection, and the message that ends the connection."""

    def __init__(self, chance: random.Random, callers: list[Caller], connection: int) -> None:
        self._chance = chance
        self._callers = callers
        self._connection = connection
        self._count = 0

    def next(self) -> Request:
        """Return a valid request, in most cases a plain one."""
        if self._chance.random() < 0.6:
            return self.plain()
        makers = [
            self.plain,
            self._spelled,
            self._chunked,
            self._upgrade,
            self._unknown_key,
            self._other_route,
            self._other_target,
        ]
        return self._chance.choice(makers)()

    def last(self) -> Request:
        """Return a message that ends the connection."""
        makers: dict[Callable[[], Request], float] = {
            self._framing: 4,
            self._mutated_head: 3,
            self._mutated_json: 4,
            self._bad_field: 2,
            self._host: 1,
            self._version: 1,
            self._request_line: 1,
            self._bad_chunks: 1,
            self._garbage: 1,
            self._cut: 1,
            self._half_closed: 1,
            self._reset: 1,
            self._expecting: 0.5,
            self._too_large: 0.4,
            self._long_head: 0.4,
            self._trickled: 0.3,
            self._never_ending: 0.1,
        }
        (make,) = self._chance.choices(list(makers), list(makers.values()))
        return make()

    def plain(self) -> Request:
        """Return a request as most clients send it."""
        caller, sent = self._caller(), self._body()
        content = (
            b"POST /v1/classify HTTP/1.1\r\nHost: fuzz\r\nAuthorization: Bearer %b\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (caller.key.encode(), len(sent.content), sent.content)
        )
        return Request(content, _results("plain", caller, sent, (200,)))

    def _spelled(self) -> Request:
        lines = self._chance.sample(_BENIGN, k=self._chance.randint(0, 5))
        request = self._classify("spelled", *lines)
        if self._chance.random() < 0.1:  # RFC 9112, 2.2
            return msgspec.structs.replace(request, content=b"\r\n" + request.content)
        return request

    def _chunked(self) -> Request:
        caller, sent = self._caller(), self._body()
        chunks = self._in_chunks(sent.content)
        content = self._post(chunks, b"Transfer-Encoding: chunked", caller=caller)
        return Request(content, _results("chunked", caller, sent, (200,)))

    def _upgrade(self) -> Request:
        """Return a request that offers an upgrade, which is ignored (RFC 9110, 7.8)."""
        return self._classify("upgrade", *self._chance.choice(_UPGRADES))

    def _unknown_key(self) -> Request:
        content, key = self._body().content, self._caller().key.encode()
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
        head = self._head(_CLASSIFY, [b"Host: fuzz", who, _sized(content)])
        return Request(head + content, ExpectedResponse(name="unknown key", statuses={401}))

    def _other_route(self) -> Request:
        """Return a request to a read-only route, or with a method that its route does not have."""
        method = self._chance.choice([b"GET", b"GET", b"HEAD"])
        name, (path, status) = "other route", self._chance.choice(_ROUTES)
        if self._chance.random() < 0.5:
            method = self._chance.choice([b"GET", b"PUT", b"DELETE", b"PATCH", b"OPTIONS", b"HEAD"])
            name, path, status = "method", b"/v1/classify", 405
        head = self._post(b"", b"Content-Length: 0", line=method + b" " + path + b" HTTP/1.1")
        is_head = method == b"HEAD"
        return Request(head, ExpectedResponse(name=name, statuses={status}, to_head=is_head))

    def _other_target(self) -> Request:
        """Return a request with another spelling of its target, or an unknown route."""
        target, *statuses = self._chance.choice(_TARGETS)
        line = b"POST %b HTTP/1.1" % target
        return self._classify("target", line=line, statuses=statuses)

    def _framing(self) -> Request:
        """Return a request whose body length is wrong or stated twice."""
        content = self._body().content
        # If the gateway took this for a separate request, another caller's answer would come back.
        other = self.plain().content
        size = len(content)
        lines = self._chance.choice(_FRAMINGS).format(
            size=size, more=size + 1, both=size + len(other)
        )
        sent = self._post(content, *lines.encode("latin-1").split(b"|"))
        return _refused("framing", sent + other, 400, 413, 501)

    def _bad_chunks(self) -> Request:
        sent = self._post(self._chance.choice(_CHUNKS), b"Transfer-Encoding: chunked")
        return _refused("chunks", sent + self.plain().content, 400)

    def _bad_field(self) -> Request:
        """Return a head with an unusual line, or with a line that is no header field."""
        request, line = self.plain(), self._chance.choice(_NO_FIELDS + _ODD_FIELDS)
        content = request.content.replace(b"\r\nHost", b"\r\n" + line + b"\r\nHost", 1)
        if line in _NO_FIELDS:
            return _refused("field", content, 400)
        if line == _TAB:
            content = content.replace(b"\r\n\r\n", b"\t\r\n\r\n", 1)
        expect = msgspec.structs.replace(
            request.expect, name="field", statuses={200, 400}, may_close=True
        )
        return Request(content, expect)

    def _host(self) -> Request:
        """Return a request without `Host`, or with two (RFC 9112, 3.2)."""
        content = self._body().content
        hosts = self._chance.choice([[], [b"Host: a", b"Host: b"], [b"Host: a", b"host: a"]])
        key = self._lines(self._caller())[1:]
        head = self._head(_CLASSIFY, [*hosts, *key, _sized(content)])
        expect = ExpectedResponse(name="host", statuses={400}, may_close=True)
        return Request(head + content, expect)

    def _version(self) -> Request:
        """Return a request of another version of HTTP."""
        chance, old = self._chance.random(), b"POST /v1/classify HTTP/1.0"
        if chance < 0.4:
            keep = self._chance.choice([(), (b"Connection: keep-alive",)])
            return self._classify("HTTP/1.0", *keep, line=old, may_close=True, must_close=not keep)
        if chance < 0.6:  # RFC 9112, 6.1: the framing is faulty
            chunks = self._in_chunks(self._body().content)
            content = self._post(chunks, b"Transfer-Encoding: chunked", line=old)
            return _refused("chunked HTTP/1.0", content + self.plain().content, 400)
        other = self._chance.choice([b"2.0", b"1.2", b"0.9", b"3", b"11", b"1.1x", b"x.y"])
        request = self._classify("version", line=b"POST /v1/classify HTTP/" + other)
        return _anything("version", request.content, request.expect.scope)

    def _request_line(self) -> Request:
        request = self._classify("target", line=self._chance.choice(_REQUEST_LINES))
        return _anything("target", request.content, request.expect.scope)

    def _mutated_head(self) -> Request:
        request = self._classify("mutated")
        return _anything("mutated", mutated(self._chance, request.content), request.expect.scope)

    def _mutated_json(self) -> Request:
        caller = self._caller()
        content = mutated_json(self._chance, self._body().content)
        sent = self._post(content, _sized(content), caller=caller)
        statuses = {200, 400, 403, 404, 413, 422} if is_json(content) else {400, 413}
        expect = ExpectedResponse(
            name="JSON", statuses=statuses, scope=caller.scope, is_inference=True
        )
        return Request(sent, expect)

    def _garbage(self) -> Request:
        noise = self._chance.randbytes(self._chance.randint(1, 200))
        content = self._chance.choice(_OTHER_PROTOCOLS)
        return _anything("garbage", content.replace(b"%b", noise), "")

    def _cut(self) -> Request:
        """Return a truncated request, followed by a half close."""
        whole = self._spelled().content
        return _anything("cut", whole[: self._chance.randrange(1, len(whole))], "")

    def _half_closed(self) -> Request:
        """Return a whole request, followed by a half close."""
        request = self._chance.choice([self.plain, self._chunked])()
        expect = msgspec.structs.replace(request.expect, name="half-closed", must_close=True)
        return Request(request.content, expect, half_closes=True)

    def _reset(self) -> Request:
        """Return a whole or truncated request, followed by a reset."""
        request = self.plain()
        size = len(request.content)
        size = self._chance.choice([size, self._chance.randrange(1, size)])
        expect = _any_response("reset", request.expect.scope)
        return Request(request.content[:size], expect, resets=True)

    def _expecting(self) -> Request:
        """Return a request with `Expect: 100-continue` that sends its body without waiting."""
        what = self._chance.choice([b"100-continue", b"100-Continue", b"200-ok"])
        return self._classify("expect", b"Expect: " + what, statuses=(200, 417), may_close=True)

    def _too_large(self) -> Request:
        """Return a body with too many bytes or items."""
        items = b",".join([b'"a"'] * (MAX_ITEMS + self._chance.randint(1, 9)))
        long, many = b'"%b"' % (b"a" * MAX_BODY_BYTES), b"[%b]" % items
        content = b'{"model":"stub","input":%b}' % self._chance.choice([long, many])
        sent = self._post(content, _sized(content))
        expect = ExpectedResponse(name="too large", statuses={413}, may_close=True)
        return Request(sent, expect)

    def _long_head(self) -> Request:
        """Return a head with too many bytes or fields."""
        lines = self._chance.choice(
            [
                [b"X-Big: " + b"a" * _HEAD_BYTES],
                [b"X-%d: a" % number for number in range(_HEAD_FIELDS + 1)],
                [b"X-%d: %b" % (number, b"a" * 900) for number in range(90)],
            ]
        )
        return _refused("long head", self._post(b"{}", *lines, _sized(b"{}")), 431)

    def _trickled(self) -> Request:
        """Return a valid request that arrives a few bytes at a time."""
        request = self._spelled()
        # On a slow machine, the head may arrive later than the gateway allows.
        expect = msgspec.structs.replace(
            request.expect, name="trickled", statuses={200, 408}, may_close=True
        )
        pace = (self._chance.randint(1, 9), self._chance.choice([0.0, 0.001, 0.01]))
        return Request(request.content, expect, pace=pace)

    def _never_ending(self) -> Request:
        """Return a truncated request whose sender keeps the connection open."""
        content = self._body().content
        whole = self._post(content, b"X-Request-Timeout: 1", _sized(content))
        head = len(whole) - len(content)
        sent = whole[: self._chance.choice([9, head - 3, len(whole) - 1])]
        expect = ExpectedResponse(
            name="never ending", statuses={408}, must_close=True, may_be_silent=True
        )
        return Request(sent, expect)

    def _caller(self) -> Caller:
        return self._chance.choice(self._callers)

    def _body(self) -> RequestBody:
        self._count += 1
        return body(self._chance, f"{self._connection}-{self._count}")

    def _classify(
        self,
        name: str,
        *lines: bytes,
        line: bytes = _CLASSIFY,
        statuses: Collection[int] = (200,),
        **more: bool,
    ) -> Request:
        """Return a valid request with this request line, and these lines in its head."""
        caller, sent = self._caller(), self._body()
        content = self._post(sent.content, *lines, _sized(sent.content), caller=caller, line=line)
        return Request(content, _results(name, caller, sent, statuses, **more))

    def _post(
        self, content: bytes, *lines: bytes, caller: Caller | None = None, line: bytes = _CLASSIFY
    ) -> bytes:
        """Return a request with these header lines, which must frame the content."""
        return self._head(line, [*self._lines(caller or self._caller()), *lines]) + content

    def _lines(self, caller: Caller) -> list[bytes]:
        """Return the header lines that every request has."""
        scheme = self._chance.choice([b"Bearer ", b"Bearer ", b"bearer ", b"BEARER ", b"Bearer  "])
        return [b"Host: fuzz", b"Authorization: " + scheme + caller.key.encode()]

    def _head(self, line: bytes, lines: list[bytes]) -> bytes:
        """Return a head with its lines in random order and its names in random case."""
        lines = [self._respelled(each) for each in lines]
        self._chance.shuffle(lines)
        return b"\r\n".join([line, *lines]) + b"\r\n\r\n"

    def _respelled(self, line: bytes) -> bytes:
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

    def _in_chunks(self, content: bytes) -> bytes:
        """Return `content` as chunks of random sizes and spellings."""
        chance = self._chance
        parts: list[bytes] = []
        while content:
            size = chance.randint(1, len(content))
            form = chance.choice([b"%x", b"%X", b"00%x", b"%x;a=b", b'%x;a="b c"'])
            parts.append(form % size + b"\r\n" + content[:size] + b"\r\n")
            content = content[size:]
        trailers = chance.choice([b"", b"", b"X-Trailer: 1\r\n", b"Authorization: Bearer x\r\n"])
        end = chance.choice([b"0", b"000", b"0;a"])
        return b"".join(parts) + end + b"\r\n" + trailers + b"\r\n"


def _sized(content: bytes) -> bytes:
    return b"Content-Length: %d" % len(content)


def _results(
    name: str, caller: Caller, sent: RequestBody, statuses: Collection[int], **more: Any
) -> ExpectedResponse:
    """Return the expected answer to `sent`: results for `caller`, or one of `statuses`."""
    return ExpectedResponse(
        name=name,
        statuses=statuses,
        scope=caller.scope,
        texts=sent.texts,
        continues=sent.continues,
        is_inference=True,
        **more,
    )


def _refused(name: str, content: bytes, *statuses: int) -> Request:
    """Return a message that the server must refuse before it closes the connection."""
    return Request(content, ExpectedResponse(name=name, statuses=statuses, must_close=True))


def _anything(name: str, content: bytes, scope: str) -> Request:
    """Return a message that the server may answer with any responses of this scope."""
    return Request(content, _any_response(name, scope), half_closes=True)


def _any_response(name: str, scope: str) -> ExpectedResponse:
    return ExpectedResponse(
        name=name, statuses=_LENIENT, scope=scope, is_many=True, is_inference=True
    )
