"""Generates requests that end a connection: wrong, ambiguous, too large, truncated, not HTTP."""

import random
from collections.abc import Callable

import msgspec

from loadtests.fuzz_http.callers import MAX_BODY_BYTES, MAX_ITEMS
from loadtests.fuzz_http.expect import LENIENT, ExpectedResponse
from loadtests.fuzz_http.mutations import is_json, mutated, mutated_json
from loadtests.fuzz_http.requests import (
    OK,
    ValidRequestGenerator,
    inference_response,
    response_with_status,
    sized,
)

HEAD_BYTES, HEAD_FIELDS = 64 * 1024, 100
"""The limits of a head; a larger one is refused."""
# `|` parts lines.
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
# A folded line may be read as one, control characters kept (RFC 9112, 5.2; 9110, 5.5). The parser
# keeps a tab at the end of a value, and what the value is then is refused.
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


class FinalMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The last bytes of a connection.

    Without an `expect` any responses may come that are of `scope`; the connection ends within a
    bound all the same. `half_closes`: the sender closes its half after it.
    """

    name: str
    content: bytes
    expect: ExpectedResponse | None = None
    scope: str = ""
    half_closes: bool = False
    resets: bool = False
    pace: tuple[int, float] = (0, 0.0)
    """Bytes at a time, and seconds between them."""


class HostileGenerator:
    """Generates final messages that end a connection."""

    def __init__(self, chance: random.Random, right: ValidRequestGenerator) -> None:
        self._chance = chance
        self._right = right
        self._makers: dict[Callable[[], FinalMessage], float] = {
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

    def next(self) -> FinalMessage:
        """Return the next final message."""
        (make,) = self._chance.choices(list(self._makers), list(self._makers.values()))
        return make()

    def framing(self) -> FinalMessage:
        """Return a body whose length is given wrongly, or twice."""
        content = self._right.body().content
        # Where it were taken for a request of its own, another's answer would come back.
        other = self._right.plain().content
        size = len(content)
        lines = self._chance.choice(_FRAMINGS).format(
            size=size, more=size + 1, both=size + len(other)
        )
        sent = self._right.post(content, *lines.encode("latin-1").split(b"|"))
        return _refused("framing", sent + other, 400, 413, 501)

    def coding(self) -> FinalMessage:
        """Return a chunked body with wrong chunks."""
        chunks = self._chance.choice(_CHUNKS)
        sent = self._right.post(chunks, b"Transfer-Encoding: chunked")
        return _refused("chunks", sent + self._right.plain().content, 400)

    def bad_field(self) -> FinalMessage:
        """Return a head with a line that is no field, or a strange one."""
        caller, sent = self._right.caller(), self._right.body()
        line = self._chance.choice(_NO_FIELDS + _ODD_FIELDS)
        is_odd = line in _ODD_FIELDS
        has_length = b"Content-Length" in line
        lines = [line % len(sent.content)] if has_length else [line, sized(sent.content)]
        key = b"Authorization: Bearer " + caller.key.encode()
        head = b"\r\n".join([b"POST /v1/classify HTTP/1.1", b"Host: fuzz", key, *lines])
        content = head + b"\r\n\r\n" + sent.content
        if not is_odd:
            return _refused("field", content, 400)
        expect = msgspec.structs.replace(
            inference_response("field", caller, sent),
            statuses=frozenset({200, 400}),
            may_close=True,
        )
        return FinalMessage(name="field", content=content, expect=expect)

    def host(self) -> FinalMessage:
        """Return a request without `Host`, or with two (RFC 9112, 3.2)."""
        content = self._right.body().content
        hosts = self._chance.choice([[], [b"Host: a", b"Host: b"], [b"Host: a", b"host: a"]])
        sent = self._right.post(content, sized(content), hosts=hosts)
        expect = msgspec.structs.replace(response_with_status("host", 400), may_close=True)
        return FinalMessage(name="host", content=sent, expect=expect)

    def version(self) -> FinalMessage:
        """Return a request of another version of HTTP."""
        caller, sent = self._right.caller(), self._right.body()
        plain = b"POST /v1/classify HTTP/%b\r\n" + b"\r\n".join(self._right.lines(caller))
        length = b"\r\n" + sized(sent.content)
        chance = self._chance.random()
        if chance < 0.4:
            keep = self._chance.choice([b"", b"\r\nConnection: keep-alive"])
            content = plain % b"1.0" + length + keep + b"\r\n\r\n" + sent.content
            expect = msgspec.structs.replace(
                inference_response("HTTP/1.0", caller, sent), may_close=True, must_close=not keep
            )
            return FinalMessage(name="HTTP/1.0", content=content, expect=expect)
        if chance < 0.6:  # RFC 9112, 6.1: the framing is faulty
            content = plain % b"1.0" + b"\r\nTransfer-Encoding: chunked\r\n\r\n"
            content += self._right.in_chunks(sent.content) + self._right.plain().content
            return _refused("chunked HTTP/1.0", content, 400)
        other = self._chance.choice([b"2.0", b"1.2", b"0.9", b"3", b"11", b"1.1x", b"x.y"])
        content = plain % other + length + b"\r\n\r\n" + sent.content
        return _anything("version", content, caller.scope)

    def target(self) -> FinalMessage:
        """Return a request with a malformed request line."""
        caller, sent = self._right.caller(), self._right.body()
        line = self._chance.choice(_REQUEST_LINES)
        head = b"\r\n".join([line, *self._right.lines(caller), sized(sent.content)])
        return _anything("target", head + b"\r\n\r\n" + sent.content, caller.scope)

    def mutated_head(self) -> FinalMessage:
        """Return a valid request with some bytes changed."""
        caller, content = self._right.caller(), self._right.body().content
        sent = self._right.post(content, sized(content), caller=caller)
        return _anything("mutated", mutated(self._chance, sent), caller.scope)

    def mutated_json(self) -> FinalMessage:
        """Return a request whose JSON body is changed or broken."""
        caller = self._right.caller()
        content = mutated_json(self._chance, self._right.body().content)
        sent = self._right.post(content, sized(content), caller=caller)
        statuses = OK | {400, 403, 404, 413, 422} if is_json(content) else frozenset({400, 413})
        expect = ExpectedResponse(name="JSON", statuses=statuses, scope=caller.scope)
        return FinalMessage(name="JSON", content=sent, expect=expect)

    def garbage(self) -> FinalMessage:
        """Return the first bytes of another protocol."""
        noise = self._chance.randbytes(self._chance.randint(1, 200))
        content = self._chance.choice(_OTHER_PROTOCOLS)
        return _anything("garbage", content.replace(b"%b", noise), "")

    def cut(self) -> FinalMessage:
        """Return a truncated request, followed by a half close."""
        whole = self._right.spelled().content
        return _anything("cut", whole[: self._chance.randrange(1, len(whole))], "")

    def half_closed(self) -> FinalMessage:
        """Return a whole request, followed by a half close."""
        request = self._chance.choice([self._right.plain, self._right.chunked])()
        expect = msgspec.structs.replace(request.expect, name="half-closed", must_close=True)
        return FinalMessage(
            name="half-closed", content=request.content, expect=expect, half_closes=True
        )

    def reset(self) -> FinalMessage:
        """Return a whole or truncated request, followed by a reset."""
        request = self._right.plain()
        size = len(request.content)
        size = self._chance.choice([size, self._chance.randrange(1, size)])
        scope = request.expect.scope
        return FinalMessage(name="reset", content=request.content[:size], scope=scope, resets=True)

    def expecting(self) -> FinalMessage:
        """Return a request with `Expect: 100-continue` that sends its body without waiting."""
        caller, sent = self._right.caller(), self._right.body()
        what = self._chance.choice([b"100-continue", b"100-Continue", b"200-ok"])
        lines = b"Expect: " + what, sized(sent.content)
        expect = msgspec.structs.replace(
            inference_response("expect", caller, sent),
            statuses=frozenset({200, 417}),
            may_close=True,
        )
        content = self._right.post(sent.content, *lines, caller=caller)
        return FinalMessage(name="expect", content=content, expect=expect)

    def too_large(self) -> FinalMessage:
        """Return a body with too many bytes or items."""
        items = b",".join([b'"a"'] * (MAX_ITEMS + self._chance.randint(1, 9)))
        content = self._chance.choice(
            [
                b'{"model":"stub","input":"%b"}' % (b"a" * MAX_BODY_BYTES),
                b'{"model":"stub","input":[%b]}' % items,
            ]
        )
        sent = self._right.post(content, sized(content))
        expect = msgspec.structs.replace(response_with_status("too large", 413), may_close=True)
        return FinalMessage(name="too large", content=sent, expect=expect)

    def long_head(self) -> FinalMessage:
        """Return a head with too many bytes or fields."""
        lines = self._chance.choice(
            [
                [b"X-Big: " + b"a" * HEAD_BYTES],
                [b"X-%d: a" % number for number in range(HEAD_FIELDS + 1)],
                [b"X-%d: %b" % (number, b"a" * 900) for number in range(90)],
            ]
        )
        return _refused("long head", self._right.post(b"{}", *lines, sized(b"{}")), 431)

    def trickled(self) -> FinalMessage:
        """Return a valid request that arrives a few bytes at a time."""
        request = self._right.spelled()
        # On a slow machine the head may take longer than a head may.
        statuses = OK | {408}
        expect = msgspec.structs.replace(
            request.expect, name="trickled", statuses=statuses, may_close=True
        )
        pace = (self._chance.randint(1, 9), self._chance.choice([0.0, 0.001, 0.01]))
        return FinalMessage(name="trickled", content=request.content, expect=expect, pace=pace)

    def never_ending(self) -> FinalMessage:
        """Return a truncated request whose sender keeps the connection open."""
        content = self._right.body().content
        whole = self._right.post(content, b"X-Request-Timeout: 1", sized(content))
        head = len(whole) - len(content)
        sent = whole[: self._chance.choice([9, head - 3, len(whole) - 1])]
        expect = msgspec.structs.replace(
            response_with_status("never ending", 408), must_close=True, may_be_silent=True
        )
        return FinalMessage(name="never ending", content=sent, expect=expect)


def _refused(name: str, content: bytes, *statuses: int) -> FinalMessage:
    """Return a refused message, after which the server must close the connection."""
    expect = msgspec.structs.replace(response_with_status(name, *statuses), must_close=True)
    return FinalMessage(name=name, content=content, expect=expect)


def _anything(name: str, content: bytes, scope: str) -> FinalMessage:
    return FinalMessage(name=name, content=content, scope=scope, half_closes=True)


def any_response_in(scope: str, name: str) -> ExpectedResponse:
    """Return the expectation of any response within `scope`."""
    return ExpectedResponse(name=name, statuses=LENIENT, scope=scope)
