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
)

HEAD_BYTES, HEAD_FIELDS = 64 * 1024, 100
"""What a head may have; more is refused."""


class FinalMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The last bytes of a connection.

    Without an `expect` any responses may come that are of `scope`; the connection ends within a
    bound all the same. `half_closes`: nothing is sent after it, and the server is told.
    """

    name: str
    content: bytes
    expect: ExpectedResponse | None = None
    scope: str = ""
    half_closes: bool = False
    resets: bool = False
    pace: tuple[int, float] = (0, 0.0)
    """Bytes at a time, and seconds between them."""
    is_left_open: bool = False
    """Nothing more comes, and the connection stays: the server has to end it."""


class HostileGenerator:
    """Generates final messages that end a connection."""

    def __init__(self, chance: random.Random, right: ValidRequestGenerator) -> None:
        self._chance = chance
        self._right = right
        self._makers: list[tuple[float, Callable[[], FinalMessage]]] = [
            (4, self.framing),
            (3, self.mutated_head),
            (4, self.mutated_json),
            (2, self.bad_field),
            (1, self.host),
            (1, self.version),
            (1, self.target),
            (1, self.coding),
            (1, self.garbage),
            (1, self.cut),
            (1, self.half_closed),
            (1, self.reset),
            (0.5, self.expecting),
            (0.4, self.too_large),
            (0.4, self.long_head),
            (0.3, self.trickled),
            (0.1, self.never_ending),
        ]

    def next(self) -> FinalMessage:
        """Return the next final message."""
        weights = [weight for weight, _ in self._makers]
        ((_, make),) = self._chance.choices(self._makers, weights)
        return make()

    def framing(self) -> FinalMessage:
        """Return a body whose length is given wrongly, or twice."""
        caller, sent = self._right.caller(), self._right.body()
        size = len(sent.content)
        # Where it were taken for a request of its own, another's answer would come back.
        other = self._right.plain().content
        lengths = self._chance.choice(
            [
                [b"Content-Length: %d" % size, b"Transfer-Encoding: chunked"],
                [b"Transfer-Encoding: chunked", b"Content-Length: %d" % (size + len(other))],
                [b"Content-Length: %d" % size, b"Content-Length: %d" % (size + 1)],
                [b"Content-Length: %d, %d" % (size, size + 2)],
                [b"Content-Length: -%d" % size],
                [b"Content-Length: +%d" % size],
                [b"Content-Length: 0x%x" % size],
                [b"Content-Length: %d %d" % (size, size)],
                [b"Content-Length: %d" % 10**30],
                [b"Content-Length:"],
                [b"Content-Length: %d;a" % size],
                [b"Content-Length: \xb2"],
                [b"Transfer-Encoding: xchunked"],
                [b"Transfer-Encoding: chunked, chunked"],
                [b"Transfer-Encoding: chunked, gzip"],
                [b"Transfer-Encoding: \x0bchunked"],
                [b"Transfer-Encoding: identity", b"Content-Length: %d" % size],
            ]
        )
        head = self._right.head(b"POST", b"/v1/classify", [*self._right.lines(caller), *lengths])
        expect = response_with_status("framing", 400, 413, 501)
        return _refused("framing", head + sent.content + other, expect)

    def coding(self) -> FinalMessage:
        """Return a chunked body with wrong chunks."""
        caller = self._right.caller()
        other = self._right.plain().content
        chunks = self._chance.choice(
            [
                b"zz\r\n{}\r\n0\r\n\r\n",
                b"-1\r\n{}\r\n0\r\n\r\n",
                b"ffffffffffffffffff\r\n{}\r\n0\r\n\r\n",
                b"2\r\n{}}\r\n0\r\n\r\n",
                b"2 {}\r\n0\r\n\r\n",
                b"0x2\r\n{}\r\n0\r\n\r\n",
                b"\r\n2\r\n{}\r\n0\r\n\r\n",
            ]
        )
        lines = [*self._right.lines(caller), b"Transfer-Encoding: chunked"]
        head = self._right.head(b"POST", b"/v1/classify", lines)
        return _refused("chunks", head + chunks + other, response_with_status("chunks", 400))

    def bad_field(self) -> FinalMessage:
        """Return a head with a line that is no field."""
        caller, sent = self._right.caller(), self._right.body()
        line = self._chance.choice(
            [
                b"No-Colon",
                b": no name",
                b"Sp ace: 1",
                b"Space-Before : 1",
                b"X-Nul: a\x00b",
                b"X-CR: a\rb",
                b"X-Folded: a\r\n b",
                b"X(Y): 1",
                b"\x80: 1",
                b"X-Bell: \x07",
                b"X-Tab: a\r\nContent-Length: %d\t" % len(sent.content),
            ]
        )
        content = (
            b"POST /v1/classify HTTP/1.1\r\nHost: fuzz\r\nAuthorization: Bearer %b\r\n%b\r\n"
            b"%b\r\n%b"
            % (
                caller.key.encode(),
                line,
                b"" if b"X-Tab" in line else b"Content-Length: %d\r\n" % len(sent.content),
                sent.content,
            )
        )
        # A folded line may be read as one, control characters kept (RFC 9112, 5.2; 9110, 5.5). The
        # parser keeps a tab at the end of a value, and what it is then is refused.
        is_kept = any(name in line for name in (b"Folded", b"Bell", b"X-Tab"))
        if is_kept:
            expect = msgspec.structs.replace(
                inference_response("field", caller, sent),
                statuses=frozenset({200, 400}),
                may_close=True,
            )
            return FinalMessage(name="field", content=content, expect=expect)
        return _refused("field", content, response_with_status("field", 400))

    def host(self) -> FinalMessage:
        """Return a request without `Host`, or with two (RFC 9112, 3.2)."""
        caller, sent = self._right.caller(), self._right.body()
        lines = [line for line in self._right.lines(caller) if not line.startswith(b"Host")]
        lines += self._chance.choice([[], [b"Host: a", b"Host: b"], [b"Host: a", b"host: a"]])
        lines.append(b"Content-Length: %d" % len(sent.content))
        head = self._right.head(b"POST", b"/v1/classify", lines)
        expect = msgspec.structs.replace(response_with_status("host", 400), may_close=True)
        return FinalMessage(name="host", content=head + sent.content, expect=expect)

    def version(self) -> FinalMessage:
        """Return a request of another version of HTTP."""
        caller, sent = self._right.caller(), self._right.body()
        plain = b"POST /v1/classify HTTP/%b\r\n" + b"\r\n".join(self._right.lines(caller))
        length = b"\r\nContent-Length: %d" % len(sent.content)
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
            return _refused(
                "chunked HTTP/1.0", content, response_with_status("chunked HTTP/1.0", 400)
            )
        other = self._chance.choice([b"2.0", b"1.2", b"0.9", b"3", b"11", b"1.1x", b"x.y"])
        content = plain % other + length + b"\r\n\r\n" + sent.content
        return _anything("version", content, caller.scope)

    def target(self) -> FinalMessage:
        """Return a request with a malformed request line."""
        caller, sent = self._right.caller(), self._right.body()
        line = self._chance.choice(
            [
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
            ]
        )
        lines = [*self._right.lines(caller), b"Content-Length: %d" % len(sent.content)]
        content = b"\r\n".join([line, *lines]) + b"\r\n\r\n" + sent.content
        return _anything("target", content, caller.scope)

    def mutated_head(self) -> FinalMessage:
        """Return a valid request with some bytes changed."""
        caller, sent = self._right.caller(), self._right.body()
        lines = [*self._right.lines(caller), b"Content-Length: %d" % len(sent.content)]
        content = self._right.head(b"POST", b"/v1/classify", lines) + sent.content
        return _anything("mutated", mutated(self._chance, content), caller.scope)

    def mutated_json(self) -> FinalMessage:
        """Return a request whose JSON body is changed or broken."""
        caller, sent = self._right.caller(), self._right.body()
        content = mutated_json(self._chance, sent.content)
        lines = [*self._right.lines(caller), b"Content-Length: %d" % len(content)]
        head = self._right.head(b"POST", b"/v1/classify", lines)
        statuses = OK | {400, 403, 404, 413, 422} if is_json(content) else frozenset({400, 413})
        expect = ExpectedResponse(name="JSON", statuses=statuses, scope=caller.scope)
        return FinalMessage(name="JSON", content=head + content, expect=expect)

    def garbage(self) -> FinalMessage:
        """Return the first bytes of another protocol."""
        noise = self._chance.randbytes(self._chance.randint(1, 200))
        content = self._chance.choice(
            [
                b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + noise,
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + noise,
                b"SSH-2.0-OpenSSH_9.6\r\n",
                b"*1\r\n$4\r\nPING\r\n",
                b"\x00" * 64,
                b"\r\n" * 200,
                noise,
            ]
        )
        return _anything("garbage", content, "")

    def cut(self) -> FinalMessage:
        """Return a truncated request, followed by a half close."""
        whole = self._right.spelled().content
        content = whole[: self._chance.randrange(1, len(whole))]
        return _anything("cut", content, "")

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
        lines = [*self._right.lines(caller), b"Expect: " + what]
        lines.append(b"Content-Length: %d" % len(sent.content))
        head = self._right.head(b"POST", b"/v1/classify", lines)
        expect = msgspec.structs.replace(
            inference_response("expect", caller, sent),
            statuses=frozenset({200, 417}),
            may_close=True,
        )
        return FinalMessage(name="expect", content=head + sent.content, expect=expect)

    def too_large(self) -> FinalMessage:
        """Return a body with too many bytes or items."""
        caller = self._right.caller()
        if self._chance.random() < 0.5:
            content = b'{"model":"stub","input":"%b"}' % (b"a" * MAX_BODY_BYTES)
        else:
            items = b",".join([b'"a"'] * (MAX_ITEMS + self._chance.randint(1, 9)))
            content = b'{"model":"stub","input":[%b]}' % items
        lines = [*self._right.lines(caller), b"Content-Length: %d" % len(content)]
        head = self._right.head(b"POST", b"/v1/classify", lines)
        expect = msgspec.structs.replace(response_with_status("too large", 413), may_close=True)
        return FinalMessage(name="too large", content=head + content, expect=expect)

    def long_head(self) -> FinalMessage:
        """Return a head with too many bytes or fields."""
        caller = self._right.caller()
        more = self._chance.choice(
            [
                [b"X-Big: " + b"a" * HEAD_BYTES],
                [b"X-%d: a" % number for number in range(HEAD_FIELDS + 1)],
                [b"X-%d: %b" % (number, b"a" * 900) for number in range(90)],
            ]
        )
        lines = [*self._right.lines(caller), *more, b"Content-Length: 2"]
        content = self._right.head(b"POST", b"/v1/classify", lines) + b"{}"
        return _refused("long head", content, response_with_status("long head", 431))

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
        caller, sent = self._right.caller(), self._right.body()
        lines = [*self._right.lines(caller), b"X-Request-Timeout: 1"]
        lines.append(b"Content-Length: %d" % len(sent.content))
        head = self._right.head(b"POST", b"/v1/classify", lines)
        whole = head + sent.content
        content = whole[: self._chance.choice([9, len(head) - 3, len(whole) - 1])]
        expect = msgspec.structs.replace(
            response_with_status("never ending", 408), must_close=True, may_be_silent=True
        )
        return FinalMessage(name="never ending", content=content, expect=expect, is_left_open=True)


def _refused(name: str, content: bytes, expect: ExpectedResponse) -> FinalMessage:
    """Return a refused message, after which the server must close the connection."""
    return FinalMessage(
        name=name, content=content, expect=msgspec.structs.replace(expect, must_close=True)
    )


def _anything(name: str, content: bytes, scope: str) -> FinalMessage:
    return FinalMessage(name=name, content=content, scope=scope, half_closes=True)


def any_response_in(scope: str, name: str) -> ExpectedResponse:
    """Return the expectation of any response within `scope`."""
    return ExpectedResponse(name=name, statuses=LENIENT, scope=scope)
