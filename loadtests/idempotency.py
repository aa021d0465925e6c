"""Kills workers and Redis while requests with idempotency keys are sent and sent again.

Each key is sent until it is answered, and then once more. Some callers hang up before the answer.
All answers of a key must be equal, and the ledger must have each request once.
"""

import asyncio
import contextlib
import os
import random
import signal
import sqlite3
import sys
import tempfile
import uuid
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path

import httpx
import msgspec

from gateway.auth.keys import hash_key
from gateway.events.hit_run import ids_from
from gateway.ledger.ledger import Ledger
from gateway.settings import Settings
from loadtests.gateway import Gateway
from loadtests.machine import this_machine
from testing.billing import billing
from testing.stub_process import stub_process
from testing.valkey import Valkey
from testing.waiting import eventually

_KEY = "sk-idempotency-key-0123456789"
_WORKERS = 2
_LEASE = 1.0
_SERVICE_TIME = 0.05
_LARGE_EVERY = 10
_HANG_UP_EVERY = 4
_PATIENCE = 120.0
"""Seconds after which a key that was not answered counts as lost."""
_DURABLE = ("--appendonly", "yes")


class KeyedRequest(msgspec.Struct, frozen=True):
    """A request and its key; a large one has an answer that is not stored."""

    key: str
    body: bytes
    items: int


class Seen(msgspec.Struct):
    """What the callers saw: answers by key, and how often what else."""

    answers: dict[str, list[tuple[str, bytes]]] = {}
    """The id and the results of each answer."""
    outcomes: Counter[str] = msgspec.field(default_factory=Counter)
    wrong: list[str] = []


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Compares answers with the ledger."""

    answered: int
    unlike: int
    """Keys with answers that differ, or with several ids."""
    missing: int
    """Answered keys that the ledger lacks."""
    unlike_bills: int
    """Keys whose answers' ids have other items in the ledger than their requests."""
    items: int
    expected: int
    """Items of answers in the ledger, and items of all requests."""


def measure(*, requests: int, callers: int) -> None:
    """Send the requests, and print what came of them; fail where a claim does not hold."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        stub = stack.enter_context(stub_process(service_time=_SERVICE_TIME))
        cache = stack.enter_context(Valkey())
        state = stack.enter_context(Valkey(*_DURABLE))
        backend = {"id": "stub", "url": stub.url}
        document = {
            "regions": [{"name": "eu", "pools": [{"backends": [backend]}]}],
            "idempotency": {"lease": _LEASE},
            "limits": {"tenant": []},
        }
        gateway = Gateway(
            Path(folder) / "gateway",
            document,
            workers=_WORKERS,
            cache_url=cache.url,
            state_url=state.url,
        )
        with Ledger.create(gateway.settings.ledger) as ledger:
            ledger.accounts.create_tenant("acme")
            ledger.accounts.create_key("acme", key_hash=hash_key(_KEY))
        sent = [_request(number) for number in range(requests)]
        with gateway, billing(gateway.settings):
            seen, kills = asyncio.run(_run(gateway, state, cache, sent, callers=callers))
            compared = asyncio.run(_compare(gateway.settings, sent, seen))
    _show(sent, seen, kills, compared)


def _request(number: int) -> KeyedRequest:
    is_large = number % _LARGE_EVERY == 0
    texts = [f"request {number}"]
    if is_large:
        texts = [f"request {number}, text {place} {'x' * 2_000}" for place in range(40)]
    body = msgspec.json.encode({"model": "stub", "input": texts})
    return KeyedRequest(str(uuid.uuid4()), body, len(texts))


async def _run(
    gateway: Gateway, state: Valkey, cache: Valkey, sent: list[KeyedRequest], *, callers: int
) -> tuple[Seen, Counter[str]]:
    seen, kills, waiting = Seen(), Counter[str](), iter(sent)

    async def call() -> None:
        for request in waiting:
            await _send_twice(gateway.port, request, seen)

    killing = asyncio.create_task(_kill(gateway, state, cache, kills))
    await asyncio.gather(*(call() for _ in range(callers)))
    killing.cancel()
    await asyncio.gather(killing, return_exceptions=True)
    for redis in (state, cache):
        if not redis.is_running:
            redis.start()
    return seen, kills


async def _send_twice(port: int, request: KeyedRequest, seen: Seen) -> None:
    """Send a request until it was answered, and once more until it was."""
    if int(request.key[:8], 16) % _HANG_UP_EVERY == 0:
        await _hang_up(port, request, seen)
    for _ in range(2):
        try:
            await eventually(lambda: _send(port, request, seen), within=_PATIENCE, every=0.2)
        except AssertionError:
            seen.wrong.append(f"{request.key} was not answered")


async def _send(port: int, request: KeyedRequest, seen: Seen) -> bool:
    try:
        async with httpx.AsyncClient(timeout=30.0) as client:
            response = await client.post(
                f"http://127.0.0.1:{port}/v1/classify",
                content=request.body,
                headers=_headers(request),
            )
    except httpx.TransportError:
        seen.outcomes["connection lost"] += 1
        return False
    if not response.is_success:
        seen.outcomes[f"{response.status_code} {response.json().get('code')}"] += 1
        if response.status_code not in (409, 429, 500, 502, 503, 504):
            seen.wrong.append(f"{request.key}: {response.text}")
        return False
    is_replayed = response.headers.get("idempotency-replayed") == "true"
    seen.outcomes["200 replayed" if is_replayed else "200"] += 1
    results = msgspec.json.encode(response.json()["results"])
    answer = (response.headers["x-request-id"], results)
    seen.answers.setdefault(request.key, []).append(answer)
    return True


async def _hang_up(port: int, request: KeyedRequest, seen: Seen) -> None:
    """Send a request, and do not wait for its answer."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return
    lines = [f"{name}: {value}" for name, value in _headers(request).items()]
    head = ["POST /v1/classify HTTP/1.1", "host: x", *lines]
    head.append(f"content-length: {len(request.body)}")
    writer.write("\r\n".join(head).encode() + b"\r\n\r\n" + request.body)
    with contextlib.suppress(OSError):
        await writer.drain()
    await asyncio.sleep(random.uniform(0.0, 2 * _SERVICE_TIME))
    writer.transport.abort()
    seen.outcomes["hung up"] += 1


def _headers(request: KeyedRequest) -> dict[str, str]:
    return {"authorization": f"Bearer {_KEY}", "idempotency-key": request.key}


async def _kill(gateway: Gateway, state: Valkey, cache: Valkey, kills: Counter[str]) -> None:
    """Kill a worker or a Redis every second or so, for as long as this is not cancelled."""
    while True:
        await asyncio.sleep(random.uniform(0.4, 1.6))
        victim = random.choice(("worker", "worker", "state Redis", "cache Redis"))
        kills[victim] += 1
        if victim == "worker":
            named = {n: pid for n, pid in gateway.processes().items() if n.startswith("gateway")}
            with contextlib.suppress(ProcessLookupError, IndexError):
                os.kill(random.choice(sorted(named.values())), signal.SIGKILL)
            continue
        redis = state if victim == "state Redis" else cache
        await asyncio.to_thread(redis.kill)
        await asyncio.sleep(random.uniform(0.0, 0.5))
        await asyncio.to_thread(redis.start)


async def _compare(settings: Settings, sent: list[KeyedRequest], seen: Seen) -> Comparison:
    """Wait until the ledger has every answer, and compare."""
    ids = {key: {id_ for id_, _ in answers} for key, answers in seen.answers.items()}

    def missing() -> int:
        billed = _billed(settings)
        return sum(not found & billed.keys() for found in ids.values())

    async def is_whole() -> bool:
        return missing() == 0

    with contextlib.suppress(AssertionError):
        await eventually(is_whole, every=0.5)
    await asyncio.sleep(3.0)  # for what should not come: an answer that is counted again
    unlike = sum(len(set(answers)) > 1 for answers in seen.answers.values())
    billed = _billed(settings)
    return Comparison(
        answered=len(seen.answers),
        unlike=unlike,
        missing=missing(),
        unlike_bills=sum(
            sum(billed[id_] for id_ in ids.get(request.key, ())) != request.items
            for request in sent
        ),
        items=sum(billed.values()),
        expected=sum(request.items for request in sent),
    )


def _billed(settings: Settings) -> Counter[str]:
    """Return the items of each answer in the ledger, by its id."""
    path = settings.data_dir / "ledger.db"
    query = "SELECT id, requests, items FROM usage_events WHERE status = 200"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        rows = connection.execute(query).fetchall()
    found = Counter[str]()
    for first, count, items in rows:
        for id_ in ids_from(first, count):
            found[id_] += items // count
    return found


def _show(sent: list[KeyedRequest], seen: Seen, kills: Counter[str], compared: Comparison) -> None:
    machine = this_machine()
    print(f"\n{machine.headline}\n")
    print(f"Killed: {', '.join(f'{name} {count}x' for name, count in sorted(kills.items()))}.")
    print("| outcome of a call | calls |\n|---|---|")
    for name, count in sorted(seen.outcomes.items()):
        print(f"| {name} | {count} |")
    print(
        f"\n{len(sent)} keys: {compared.answered} answered, {compared.unlike} with unlike answers,"
        f" {compared.missing} not in the ledger, {compared.unlike_bills} billed otherwise than"
        f" they asked; {compared.items} items billed of"
        f" {compared.expected} requested."
    )
    broken = seen.wrong[:10]
    if compared.answered < len(sent) or compared.unlike or compared.missing:
        broken.append("answers are missing or differ")
    if compared.items != compared.expected or compared.unlike_bills:
        broken.append("items are not billed once each")
    if broken:
        sys.exit(f"does not hold: {'; '.join(broken)}")
