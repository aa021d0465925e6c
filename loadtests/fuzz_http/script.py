"""Builds the script of a connection from seed and number alone."""

import random
from collections.abc import Container, Sequence

import msgspec

from loadtests.fuzz_http.callers import Caller
from loadtests.fuzz_http.expect import ExpectedResponse
from loadtests.fuzz_http.hostile import FinalMessage, HostileGenerator
from loadtests.fuzz_http.requests import Request, ValidRequestGenerator

_PIPELINED = (1, 1, 2, 4, 8, 16, 32)


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of a connection in order, and perhaps a final message."""

    number: int
    parts: tuple[bytes, ...]
    """The right requests, sent one behind the other."""
    expects: tuple[ExpectedResponse, ...]
    cuts: tuple[int, ...]
    """Where they are cut, and sent apart."""
    reads_late: bool
    """Whether nothing is read for a while."""
    last: FinalMessage | None

    @property
    def requests(self) -> int:
        """The number of requests."""
        return len(self.expects) + (self.last is not None)


def script(seed: int, number: int, callers: list[Caller], *, without: Container[str]) -> Script:
    """Return the script of connection `number`, without the kinds in `without`."""
    chance = random.Random(f"{seed}/{number}")
    right = ValidRequestGenerator(chance, callers, number)
    requests = [
        request
        for request in (right.next() for _ in range(chance.choice(_PIPELINED)))
        if request.expect.name not in without
    ]
    last = HostileGenerator(chance, right).next() if chance.random() < 0.5 else None
    if last is not None and last.name in without:
        last = None
    return make_script(chance, number, requests, last, cuts=(0, 0, 0, 1, 3))


def make_script(
    chance: random.Random,
    number: int,
    requests: Sequence[Request],
    last: FinalMessage | None,
    *,
    cuts: Sequence[int],
) -> Script:
    """Return the script of some requests; `cuts` are possible numbers of random cuts."""
    size = sum(len(request.content) for request in requests)
    places = chance.choice(cuts) if size else 0
    return Script(
        number=number,
        parts=tuple(request.content for request in requests),
        expects=tuple(request.expect for request in requests),
        cuts=tuple(sorted(chance.sample(range(1, size), k=places))),
        reads_late=chance.random() < 0.01,
        last=last,
    )
