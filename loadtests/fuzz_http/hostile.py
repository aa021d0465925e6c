"""Makes requests that end a connection: invalid, ambiguous, too large, truncated, not HTTP."""

from collections.abc import Callable

import msgspec

from loadtests.fuzz_http.callers import MAX_BODY_BYTES, MAX_ITEMS
from loadtests.fuzz_http.expect import ExpectedResponse
from loadtests.fuzz_http.mutations import is_json, mutated, mutated_json
from loadtests.fuzz_http.requests import (
    Request,
    ValidRequestGenerator,
    inference_response,
    plain_response,
    sized,
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
# A server may join a folded line to the line before it, and may keep control characters (RFC 9112,
# 5.2; RFC 9110, 5.5). The parser keeps the tab at the end of the length, which is then invalid.
_ODD_FIELDS = (b"X-Folded: a\r\n b", b"X-Bell: \x07", b"X-Tab: a\r\nContent-Length: %d\t")
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


class RequestGenerator(ValidRequestGenerator):
    """Generates the requests of one connection, and the message that ends the connection."""

    def last(self) -> Request:
        """Return a message that ends the connection."""
        makers: dict[Callable[[], Request], float] = {
            self.framing: 4,
            self.mutated_head: 3,
            self.mutated_json: 4,
            self.bad_field: 2,
            self.host: 1,
            self.version: 1,
            self.target: 1,
            self.coding: 1,
            self.garbage: 1,
            self.cut: 1,
            self.half_closed: 1,
            self.reset: 1,
            self.expecting: 0.5,
            self.too_large: 0.4,
            self.long_head: 0.4,
            self.trickled: 0.3,
            self.never_ending: 0.1,
        }
        (make,) = self._chance.choices(list(makers), list(makers.values()))
        return make()

    def framing(self) -> Request:
        """Return a request whose body length is wrong or stated twice."""
        content = self.body().content
        # If the gateway took this for a separate request, another caller's answer would come back.
        other = self.plain().content
        size = len(content)
        lines = self._chance.choice(_FRAMINGS).format(
            size=size, more=size + 1, both=size + len(other)
        )
        sent = self.post(content, *lines.encode("latin-1").split(b"|"))
        return _refused("framing", sent + other, 400, 413, 501)

    def coding(self) -> Request:
        """Return a chunked body with invalid chunks."""
        chunks = self._chance.choice(_CHUNKS)
        sent = self.post(chunks, b"Transfer-Encoding: chunked")
        return _refused("chunks", sent + self.plain().content, 400)

    def bad_field(self) -> Request:
        """Return a head with an unusual line, or with a line that is no header field."""
        caller, sent = self.caller(), self.body()
        line = self._chance.choice(_NO_FIELDS + _ODD_FIELDS)
        has_length = b"Content-Length" in line
        lines = [line % len(sent.content)] if has_length else [line, sized(sent.content)]
        first = b"POST /v1/classify HTTP/1.1\r\nHost: fuzz\r\nAuthorization: Bearer "
        content = b"\r\n".join([first + caller.key.encode(), *lines, b"", sent.content])
        if line in _NO_FIELDS:
            return _refused("field", content, 400)
        return Request(content, inference_response("field", caller, sent, 200, 400, may_close=True))

    def host(self) -> Request:
        """Return a request without `Host`, or with two (RFC 9112, 3.2)."""
        content = self.body().content
        hosts = self._chance.choice([[], [b"Host: a", b"Host: b"], [b"Host: a", b"host: a"]])
        sent = self.post(content, sized(content), hosts=hosts)
        return Request(sent, plain_response("host", 400, may_close=True))

    def version(self) -> Request:
        """Return a request of another version of HTTP."""
        caller, sent = self.caller(), self.body()
        plain = b"POST /v1/classify HTTP/%b\r\n" + b"\r\n".join(self.lines(caller))
        length = b"\r\n" + sized(sent.content)
        chance = self._chance.random()
        if chance < 0.4:
            keep = self._chance.choice([b"", b"\r\nConnection: keep-alive"])
            content = plain % b"1.0" + length + keep + b"\r\n\r\n" + sent.content
            closing = {"may_close": True, "must_close": not keep}
            return Request(content, inference_response("HTTP/1.0", caller, sent, **closing))
        if chance < 0.6:  # RFC 9112, 6.1: the framing is faulty
            content = plain % b"1.0" + b"\r\nTransfer-Encoding: chunked\r\n\r\n"
            content += self.in_chunks(sent.content) + self.plain().content
            return _refused("chunked HTTP/1.0", content, 400)
        other = self._chance.choice([b"2.0", b"1.2", b"0.9", b"3", b"11", b"1.1x", b"x.y"])
        content = plain % other + length + b"\r\n\r\n" + sent.content
        return _anything("version", content, caller.scope)

    def target(self) -> Request:
        """Return a request with a malformed request line."""
        caller, sent = self.caller(), self.body()
        line = self._chance.choice(_REQUEST_LINES)
        head = b"\r\n".join([line, *self.lines(caller), sized(sent.content)])
        return _anything("target", head + b"\r\n\r\n" + sent.content, caller.scope)

    def mutated_head(self) -> Request:
        """Return a valid request with some bytes changed."""
        caller, content = self.caller(), self.body().content
        sent = self.post(content, sized(content), caller=caller)
        return _anything("mutated", mutated(self._chance, sent), caller.scope)

    def mutated_json(self) -> Request:
        """Return a request whose JSON body is changed or broken."""
        caller = self.caller()
        content = mutated_json(self._chance, self.body().content)
        sent = self.post(content, sized(content), caller=caller)
        statuses = {200, 400, 403, 404, 413, 422} if is_json(content) else {400, 413}
        return Request(
            sent, ExpectedResponse(name="JSON", statuses=frozenset(statuses), scope=caller.scope)
        )

    def garbage(self) -> Request:
        """Return the first bytes of another protocol."""
        noise = self._chance.randbytes(self._chance.randint(1, 200))
        content = self._chance.choice(_OTHER_PROTOCOLS)
        return _anything("garbage", content.replace(b"%b", noise), "")

    def cut(self) -> Request:
        """Return a truncated request, followed by a half close."""
        whole = self.spelled().content
        return _anything("cut", whole[: self._chance.randrange(1, len(whole))], "")

    def half_closed(self) -> Request:
        """Return a whole request, followed by a half close."""
        request = self._chance.choice([self.plain, self.chunked])()
        expect = msgspec.structs.replace(request.expect, name="half-closed", must_close=True)
        return Request(request.content, expect, half_closes=True)

    def reset(self) -> Request:
        """Return a whole or truncated request, followed by a reset."""
        request = self.plain()
        size = len(request.content)
        size = self._chance.choice([size, self._chance.randrange(1, size)])
        expect = _any_response("reset", request.expect.scope)
        return Request(request.content[:size], expect, resets=True)

    def expecting(self) -> Request:
        """Return a request with `Expect: 100-continue` that sends its body without waiting."""
        caller, sent = self.caller(), self.body()
        what = self._chance.choice([b"100-continue", b"100-Continue", b"200-ok"])
        lines = b"Expect: " + what, sized(sent.content)
        content = self.post(sent.content, *lines, caller=caller)
        expect = inference_response("expect", caller, sent, 200, 417, may_close=True)
        return Request(content, expect)

    def too_large(self) -> Request:
        """Return a body with too many bytes or items."""
        items = b",".join([b'"a"'] * (MAX_ITEMS + self._chance.randint(1, 9)))
        long, many = b'"%b"' % (b"a" * MAX_BODY_BYTES), b"[%b]" % items
        content = b'{"model":"stub","input":%b}' % self._chance.choice([long, many])
        sent = self.post(content, sized(content))
        return Request(sent, plain_response("too large", 413, may_close=True))

    def long_head(self) -> Request:
        """Return a head with too many bytes or fields."""
        lines = self._chance.choice(
            [
                [b"X-Big: " + b"a" * _HEAD_BYTES],
                [b"X-%d: a" % number for number in range(_HEAD_FIELDS + 1)],
                [b"X-%d: %b" % (number, b"a" * 900) for number in range(90)],
            ]
        )
        return _refused("long head", self.post(b"{}", *lines, sized(b"{}")), 431)

    def trickled(self) -> Request:
        """Return a valid request that arrives a few bytes at a time."""
        request = self.spelled()
        # On a slow machine, the head may arrive later than the gateway allows.
        expect = msgspec.structs.replace(
            request.expect, name="trickled", statuses=frozenset({200, 408}), may_close=True
        )
        pace = (self._chance.randint(1, 9), self._chance.choice([0.0, 0.001, 0.01]))
        return Request(request.content, expect, pace=pace)

    def never_ending(self) -> Request:
        """Return a truncated request whose sender keeps the connection open."""
        content = self.body().content
        whole = self.post(content, b"X-Request-Timeout: 1", sized(content))
        head = len(whole) - len(content)
        sent = whole[: self._chance.choice([9, head - 3, len(whole) - 1])]
        expect = plain_response("never ending", 408, must_close=True, may_be_silent=True)
        return Request(sent, expect)


def _refused(name: str, content: bytes, *statuses: int) -> Request:
    """Return a message that the server must refuse before it closes the connection."""
    return Request(content, plain_response(name, *statuses, must_close=True))


def _anything(name: str, content: bytes, scope: str) -> Request:
    """Return a message that the server may answer with any responses of this scope."""
    return Request(content, _any_response(name, scope), half_closes=True)


def _any_response(name: str, scope: str) -> ExpectedResponse:
    return ExpectedResponse(name=name, statuses=_LENIENT, scope=scope, is_many=True)
