"""Sends a mixed load: hits, misses, batches, invalid requests and callers who disconnect.

Each kind of request has its allowed statuses. Other answers are recorded, as is the id of every
answer that must be billed.
"""

import asyncio
import contextlib
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from testing.raw_http import Connection, Response, post

OK, MALFORMED, STRANGER, NOT_FOUND, TOO_LARGE = 200, 400, 401, 404, 413
LIMITED, OVERLOADED, LATE = 429, 503, 504
_PHRASES = (
    "a gorgeous film",
    "witty and seductive",
    "only labored gags",
    "with a warm heart",
    "that never quite lands its jokes",
    "too long",
    "and honest",
    "beside a dull and endless plot",
)
_POPULAR = 100
_BATCH = 12
_LARGEST_BODY = 8 * 1024 * 1024
_PAUSE = 0.02


class RequestKind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of request: its `share` of all, its allowed statuses, and its factory."""

    share: float
    allowed: frozenset[int]
    make: Callable[[random.Random], bytes]
    leaves: bool = False
    """The caller goes before the answer comes."""
    is_last: bool = False
    """Of its connection: its body never comes."""


class TenantKeys(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of a tenant with wide limits and of one with narrow limits."""

    free: str
    narrow: str


def kinds(keys: TenantKeys) -> Mapping[str, RequestKind]:
    """Return the kinds of requests by name."""
    fresh = itertools.count()

    def kind(share: float, *allowed: int, **further: bool) -> Callable[..., RequestKind]:
        return lambda make: RequestKind(
            share=share, allowed=frozenset(allowed), make=make, **further
        )

    def missed(chooser: random.Random) -> bytes:
        return classify(keys.free, f"{_sentence(chooser)} {next(fresh)}")

    return {
        "hit": kind(0.45, OK)(lambda chooser: classify(keys.free, _known(chooser))),
        "miss": kind(0.18, OK)(missed),
        "batch": kind(0.04, OK)(
            lambda chooser: classify(
                keys.free, *(_known(chooser) for _ in range(_BATCH)), _sentence(chooser)
            )
        ),
        "no-store": kind(0.02, OK)(
            lambda chooser: classify(
                keys.free, _known(chooser), headers={"cache-control": "no-store"}
            )
        ),
        "embedding": kind(0.02, OK)(
            lambda chooser: _post("/v1/embed", keys.free, model="minilm", input=_known(chooser))
        ),
        "limited": kind(0.1, OK, LIMITED)(
            lambda chooser: classify(keys.narrow, _sentence(chooser))
        ),
        "hurried": kind(0.02, OK, OVERLOADED, LATE)(
            lambda chooser: classify(
                keys.free, _sentence(chooser), headers={"x-request-timeout": "0.005"}
            )
        ),
        "leaver": kind(0.05, leaves=True)(missed),
        "not JSON": kind(0.04, MALFORMED)(
            lambda _: post("/v1/classify", b'{"model": "sent', key=keys.free)
        ),
        "wrong fields": kind(0.03, MALFORMED)(
            lambda _: _post("/v1/classify", keys.free, model="sentiment", input=7)
        ),
        "no such model": kind(0.02, NOT_FOUND)(
            lambda _: _post("/v1/classify", keys.free, model="none", input="a film")
        ),
        "too large": kind(0.01, TOO_LARGE, is_last=True)(
            lambda _: post(
                "/v1/classify",
                None,
                key=keys.free,
                headers={"content-length": str(_LARGEST_BODY + 1)},
            )
        ),
        "stranger": kind(0.02, STRANGER)(
            lambda chooser: classify("sk-nobody-has-this-key", _known(chooser))
        ),
    }


class MixedLoad:
    """Sends mixed requests; `billable` are the ids that the ledger must have."""

    def __init__(self, port: int, kinds: Mapping[str, RequestKind]) -> None:
        self._port = port
        self._kinds = kinds
        self.answers: Counter[tuple[str, int]] = Counter()
        self.unexpected: Counter[tuple[str, int]] = Counter()
        self.broken: Counter[str] = Counter()
        self.billable: set[str] = set()
        self.left = 0

    async def ask(self, seed: int, stop: asyncio.Event) -> None:
        """Send one request after another, chosen by `seed`, until `stop`."""
        chooser = random.Random(seed)
        names = list(self._kinds)
        shares = [kind.share for kind in self._kinds.values()]
        while not stop.is_set():
            # A connection ends with a caller who leaves, and where the server says so.
            async with Connection(self._port) as connection:
                for name in _choices(chooser, names, shares, stop):
                    if not await self._once(connection, name, chooser):
                        break
                    await asyncio.sleep(chooser.random() * 2 * _PAUSE)

    async def _once(self, connection: Connection, name: str, chooser: random.Random) -> bool:
        """Send one request; return whether the connection is reusable."""
        kind = self._kinds[name]
        if kind.leaves:
            self.left += 1
            with contextlib.suppress(ConnectionError):
                await connection.send(kind.make(chooser))
                await asyncio.sleep(chooser.random() * _PAUSE)
            return False
        try:
            await connection.send(kind.make(chooser))
            response = await connection.response()
        except (OSError, EOFError, TimeoutError) as error:
            self.broken[f"{name}: {type(error).__name__}"] += 1
            return False
        self._note(name, kind, response)
        return not kind.is_last and response.headers.get("connection") != "close"

    def _note(self, name: str, kind: RequestKind, response: Response) -> None:
        self.answers[name, response.status] += 1
        if response.status not in kind.allowed:
            self.unexpected[name, response.status] += 1
        if response.status != STRANGER:
            self.billable.add(response.headers["x-request-id"])


def classify(key: str, *texts: str, headers: Mapping[str, str] | None = None) -> bytes:
    """Return a request about `texts`."""
    return _post("/v1/classify", key, headers=headers, model="sentiment", input=texts)


def _post(
    path: str, key: str, *, headers: Mapping[str, str] | None = None, **fields: object
) -> bytes:
    return post(path, msgspec.json.encode(fields), key=key, headers=headers)


def _known(chooser: random.Random) -> str:
    return f"a film of {chooser.randrange(_POPULAR)} good moments"


def _sentence(chooser: random.Random) -> str:
    return " ".join(chooser.choices(_PHRASES, k=chooser.randrange(1, 12)))


def _choices(
    chooser: random.Random, names: Sequence[str], shares: Sequence[float], stop: asyncio.Event
) -> Iterator[str]:
    while not stop.is_set():
        yield from chooser.choices(names, shares)
