"""Builds the script of a connection, which depends only on the seed and the number."""

import random
from collections.abc import Sequence

import msgspec

from loadtests.fuzz_http.callers import Caller
from loadtests.fuzz_http.hostile import RequestGenerator
from loadtests.fuzz_http.requests import Request

_PIPELINED = (1, 1, 2, 4, 8, 16, 32)


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of a connection, in order."""

    number: int
    requests: list[Request]
    """The valid requests, sent one after another without waiting for answers."""
    cuts: list[int]
    """The positions at which the bytes are cut into separate writes."""
    reads_late: bool
    """Whether the client reads nothing for a while."""
    last: Request | None
    """The message that ends the connection; it may be invalid."""

    @property
    def size(self) -> int:
        """The number of requests."""
        return len(self.requests) + (self.last is not None)


def script(seed: int, number: int, callers: list[Caller], *, is_plain: bool = False) -> Script:
    """Return the script of connection `number`; with `is_plain`, all its requests are plain."""
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
    """Return a script of some requests; `cuts` are the possible numbers of random cuts."""
    size = sum(len(request.content) for request in requests)
    places = chance.choice(cuts) if size else 0
    return Script(
        number=number,
        requests=requests,
        cuts=sorted(chance.sample(range(1, size), k=places)),
        reads_late=chance.random() < 0.01,
        last=last,
    )
