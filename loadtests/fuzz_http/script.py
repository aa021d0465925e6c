"""Builds the script of a connection from seed and number alone."""

import random
from collections.abc import Sequence

import msgspec

from loadtests.fuzz_http.callers import Caller
from loadtests.fuzz_http.hostile import RequestGenerator
from loadtests.fuzz_http.requests import Request

_PIPELINED = (1, 1, 2, 4, 8, 16, 32)


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of a connection in order."""

    number: int
    requests: list[Request]
    """The right requests, sent one behind the other."""
    cuts: list[int]
    """Where they are cut, and sent apart."""
    reads_late: bool
    """Whether nothing is read for a while."""
    last: Request | None
    """Ends the connection; it may be wrong."""

    @property
    def size(self) -> int:
        """The number of requests."""
        return len(self.requests) + (self.last is not None)


def script(seed: int, number: int, callers: list[Caller], *, is_plain: bool = False) -> Script:
    """Return the script of connection `number`; if it `is_plain`, only the plainest requests."""
    chance = random.Random(f"{seed}/{number}")
    generator = RequestGenerator(chance, callers, number)
    requests = [generator.next() for _ in range(chance.choice(_PIPELINED))]
    if is_plain:
        requests = [request for request in requests if request.expect.name == "plain"]
    last = generator.last() if chance.random() < 0.5 else None
    return make_script(chance, number, requests, None if is_plain else last, cuts=(0, 0, 0, 1, 3))


def make_script(
    chance: random.Random,
    number: int,
    requests: list[Request],
    last: Request | None,
    *,
    cuts: Sequence[int],
) -> Script:
    """Return the script of some requests; `cuts` are possible numbers of random cuts."""
    size = sum(len(request.content) for request in requests)
    places = chance.choice(cuts) if size else 0
    return Script(
        number=number,
        requests=requests,
        cuts=sorted(chance.sample(range(1, size), k=places)),
        reads_late=chance.random() < 0.01,
        last=last,
    )
