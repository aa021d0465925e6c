"""Makes the scenario of a seed: who asks what and when, what operators do, and what breaks.

A scenario is data. It can be stored, shortened and run again.
"""

import random
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from testing.model_repository import WORDS
from testing.simulation.world.model import ENCODERS, GUARD_PATH, HEAD

LENGTH: Final = 12.0
"""Seconds in which callers ask, operators act and faults begin."""
MIDNIGHT: Final = 15.0
"""The virtual time at which all clocks show midnight (UTC), unless a fault changes them."""
TENANTS: Final = ("acme", "beta", "limited")
LIMITED: Final = "limited"
CAPACITY: Final = 20
WINDOW: Final = 10.0
"""The tenant `limited` may ask `CAPACITY` requests, which refill in `WINDOW` seconds."""
WORKERS: Final = ("eu-0", "eu-1", "us-0")
_WORDS: Final = 5
_TWIN_LATE: Final = 0.002
LARGE: Final = 16
"""Items of a large request."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request that a caller sends `at` a time, in seconds since the begin of the load.

    With an `idempotency_key`, the caller sends the request again until it gets an answer.
    """

    at: float
    tenant: str
    worker: str
    path: str
    body: dict[str, Any]
    items: int
    timeout: float
    cache_control: str = ""
    idempotency_key: str = ""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator or a fault does, `at` a time, for `lasts` seconds where it has an end."""

    at: float
    kind: str
    target: str = ""
    other: str = ""
    lasts: float = 0.0
    amount: float = 0.0


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """All that happens in a run, apart from what the simulated network and threads draw."""

    seed: int
    requests: tuple[Request, ...]
    operations: tuple[Step, ...] = ()
    faults: tuple[Step, ...] = ()


def texts_of(tenant: str, chooser: random.Random) -> Iterator[str]:
    """Yield texts that no other tenant asks about, apart from a few common ones."""
    mark = tenant[0]
    while True:
        yield " ".join([mark, *chooser.choices(WORDS, k=_WORDS)])


def make_requests(
    seed: int,
    *,
    count: int = 120,
    mostly: str = "",
    phrases: int = 6,
    repeated: float = 0.5,
    keyed: float = 0.3,
    guarded: float = 0.4,
    twins: float = 0.0,
    large: int = 0,
) -> tuple[Request, ...]:
    """Return the requests of a seed, in the order of their times.

    `mostly` is the tenant that asks most often. A share `repeated` of the texts is one of `phrases`
    known texts, and a share `keyed` of the requests has an idempotency key. A share `guarded` of
    the requests for a classifier go to a guard instead. A share `twins` is sent to another worker
    of the region, too, at about the same time. `large` further requests of `LARGE` new texts come
    at equal intervals in the middle.
    """
    chooser, guards = random.Random(f"requests {seed}"), random.Random(f"guards {seed}")
    fresh = {tenant: texts_of(tenant, chooser) for tenant in TENANTS}
    known = {tenant: [next(fresh[tenant]) for _ in range(phrases)] for tenant in TENANTS}
    common = [" ".join(chooser.choices(WORDS, k=_WORDS)) for _ in range(phrases)]

    def text(tenant: str) -> str:
        if chooser.random() < 0.2:
            return chooser.choice(common)
        return chooser.choice(known[tenant]) if chooser.random() < repeated else next(fresh[tenant])

    requests = []
    for number in range(count):
        weights = [8 if tenant == mostly else 1 + (tenant == LIMITED) for tenant in TENANTS]
        tenant = chooser.choices(TENANTS, weights)[0]
        path = chooser.choices(("/v1/embed", "/v1/classify", "/v1/rerank"), (5, 3, 2))[0]
        items = chooser.choice((2, 3, 8)) if chooser.random() < 0.3 else 1
        texts = [text(tenant) for _ in range(items)]
        body: dict[str, Any] = {"model": chooser.choice(ENCODERS), "input": texts}
        if path == "/v1/classify":
            body["model"] = HEAD
            body |= chooser.choice(({}, {"top_k": 1}, {"function": "sigmoid"}))
            if guards.random() < guarded:
                path, body = GUARD_PATH, {"input": texts}
        elif path == "/v1/rerank":
            body = {"model": body["model"], "query": text(tenant), "documents": texts}
        requests.append(
            Request(
                at=chooser.uniform(0.0, LENGTH),
                tenant=tenant,
                worker=chooser.choice(WORKERS),
                path=path,
                body=body,
                items=items,
                timeout=chooser.choice((0.5, 2.0, 5.0)),
                cache_control=chooser.choices(("", "no-cache", "no-store"), (8, 1, 1))[0],
                idempotency_key=f"key-{seed}-{number}" if chooser.random() < keyed else "",
            )
        )
        if twins and chooser.random() < twins:
            requests.append(_twin(requests[-1], chooser))
    requests += _large_requests(large, chooser)
    return tuple(sorted(requests, key=lambda each: each.at))


def _large_requests(count: int, chooser: random.Random) -> Iterator[Request]:
    for number in range(count):
        texts = [" ".join(chooser.choices(WORDS, k=_WORDS)) for _ in range(LARGE)]
        yield Request(
            at=LENGTH * (1 / 4 + number / count / 2),
            tenant=TENANTS[0],
            worker=chooser.choice(WORKERS),
            path="/v1/embed",
            body={"model": ENCODERS[0], "input": texts},
            items=LARGE,
            timeout=5.0,
        )


def _twin(request: Request, chooser: random.Random) -> Request:
    region = request.worker.split("-")[0]
    others = [each for each in WORKERS if each.startswith(region) and each != request.worker]
    return msgspec.structs.replace(
        request,
        at=request.at + chooser.uniform(0.0, _TWIN_LATE),
        worker=(others or [request.worker])[0],
        idempotency_key="",
    )
