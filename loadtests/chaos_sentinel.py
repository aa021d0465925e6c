"""Kills the primary of the state Redis again and again, under Sentinels and under load.

Tenants with a limit request three times what it allows, and one without a limit requests new texts.
Every answer is compared with the ledger, and every window of admissions around a failover with a
bound by a formula that is fixed before anything is sent: it depends on how long there was no
primary.
"""

import asyncio
import contextlib
import itertools
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import msgspec

from gateway.auth.keys import hash_key
from gateway.events.hit_run import ids_from
from gateway.ledger.ledger import Ledger
from gateway.settings import Settings, environment, process_environment
from gateway.types import Rule
from loadtests.gateway import Gateway
from loadtests.machine import this_machine
from loadtests.open_loop import Answer, open_loop
from loadtests.windows import AdmittedRequest, failover_bound, most_over_the_limit
from testing.redis_deployments import (
    FAILOVER_TIMEOUT,
    SentinelDeployment,
    sentinel_deployment,
)
from testing.stub_process import stub_process
from testing.valkey import Valkey
from testing.waiting import until

RULE = Rule(name="minute", unit="requests", capacity=100, window=6.0)
WORKERS, TENANTS = 2, 2
SHARE = 0.1
_OFFERED = 3.0 * RULE.capacity / RULE.window
_FREE_RATE = 60.0
_CONNECTIONS = 12
_TIMEOUT, _BREAKER = 1.0, 1.0
_DOWN_AFTER = 1.5
"""Seconds without a reply after which a Sentinel takes the primary for down."""
_LONGEST_FAILOVER = _DOWN_AFTER + 2 * FAILOVER_TIMEOUT + 4.0
"""Seconds from a kill to the new primary at most: an election without a leader is repeated after
twice the failover timeout. A longer failover fails the run."""
_QUIET, _DURATION = 4.0, 16.0
"""Seconds of load before each kill, and around it in all."""
_AFTERWARDS = 3.0
"""Seconds after which the ledger, which had everything, is looked at once more."""
_OK, _REFUSED = 200, 429
_SAME = b'{"model":"stub","input":"a gorgeous, witty, seductive movie"}'
_Answered = tuple[str, int]
"""The id and the status of an answer."""
# What is confirmed survives a crash, and a primary without replicas takes no writes.
_DURABLE = ("--appendonly", "yes", "--min-replicas-to-write", "1")


class FailoverResult(msgspec.Struct, frozen=True, kw_only=True):
    """What callers saw from before a kill until after its failover, which took `away` seconds.

    `over` is by how many requests the worst window of a tenant was over the limit.
    """

    @property
    def bound(self) -> float:
        """What `over` may be."""
        return over_admission_bound(self.away)

    away: float
    answered: int
    refused: int
    failed: int
    slowest: float
    over: float


class LedgerComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Counts answers that the ledger lacks, entries without an answer, and those counted twice.

    Two answers with one id need two entries, and these are counted twice.
    """

    answered: int
    missing: int
    surplus: int
    twice: int


def over_admission_bound(away: float) -> float:
    """Return by how many requests a window with a failover of `away` seconds may be over."""
    unaware = away + _BREAKER + _TIMEOUT
    return failover_bound(RULE, share=SHARE, workers=WORKERS, unaware=unaware, offered=_OFFERED)


def measure(*, kills: int) -> None:
    """Run the load with so many kills and print it; fail where a claim does not hold."""
    bounds = {away: round(over_admission_bound(away), 1) for away in (2.0, 5.0, _LONGEST_FAILOVER)}
    print(f"Over the limit of {RULE.capacity} at most, by the seconds of a failover: {bounds}")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        stub = stack.enter_context(stub_process())
        cache = stack.enter_context(Valkey())
        state = stack.enter_context(
            sentinel_deployment(*_DURABLE, replicas=2, sentinels=3, down_after=_DOWN_AFTER)
        )
        document = {
            "regions": [{"name": "eu", "pools": [{"backends": [{"id": "stub", "url": stub.url}]}]}],
            "limits": {"local_share": SHARE},
        }
        gateway = Gateway(
            Path(folder) / "gateway",
            document,
            workers=WORKERS,
            cache_url=cache.url,
            state_url=state.url,
            state_timeout=_TIMEOUT,
        )
        _create_tenants(gateway.settings)
        results, answered = [], []
        with gateway, _consumers(gateway.settings):
            for number in range(kills):
                result, ids = asyncio.run(_run(gateway, state, number=number))
                print(f"kill {number + 1} of {kills}: {result}", file=sys.stderr)
                results.append(result)
                answered += ids
            compared = asyncio.run(_compare(gateway.settings, answered))
    _show(results, compared)
    if broken := violations(results, compared):
        sys.exit(f"does not hold: {'; '.join(broken)}")


@contextlib.contextmanager
def _consumers(settings: Settings) -> Iterator[None]:
    """Run billing and the request log beside the gateway."""
    environ = dict(process_environment()) | environment(settings)
    children = [
        subprocess.Popen([sys.executable, "-m", "gateway", name], env=environ)
        for name in ("run-billing", "run-request-log")
    ]
    try:
        yield
    finally:
        for child in children:
            child.terminate()
        for child in children:
            child.wait()


def _create_tenants(settings: Settings) -> None:
    with Ledger.create(settings.ledger) as ledger:
        for number in range(TENANTS + 1):
            rules = (RULE,) if number < TENANTS else ()
            ledger.accounts.create_tenant(f"tenant-{number}", rules=rules)
            ledger.accounts.create_key(f"tenant-{number}", key_hash=hash_key(_key(number)))


async def _run(
    gateway: Gateway, state: SentinelDeployment, *, number: int
) -> tuple[FailoverResult, list[_Answered]]:
    """Kill the primary once under load; return what was seen, and every answer."""
    # Every bucket is full then, so that no unit missing in one hides an admission too many.
    await asyncio.sleep(RULE.window)
    sending = [_send(gateway, tenant, iter(lambda: _SAME, b"")) for tenant in range(TENANTS)]
    sending.append(_send(gateway, TENANTS, _new_texts(number), rate=_FREE_RATE))
    answers, away = await asyncio.gather(asyncio.gather(*sending), _kill(state))
    every = [one for tenant in answers for one in tenant]
    result = FailoverResult(
        away=away,
        answered=sum(one.status == _OK for one in every),
        refused=sum(one.status == _REFUSED for one in every),
        failed=sum(one.status not in (_OK, _REFUSED) for one in every),
        slowest=max(one.latency for one in every),
        over=max(_over(tenant) for tenant in answers[:TENANTS]),
    )
    return result, [(_id(one), one.status) for one in every if one.status]


async def _send(
    gateway: Gateway, tenant: int, bodies: Iterator[bytes], *, rate: float = _OFFERED
) -> list[Answer]:
    return await open_loop(
        gateway.target(_key(tenant)),
        bodies,
        rate=rate,
        duration=_DURATION,
        seed=tenant,
        connections=_CONNECTIONS,
    )


async def _kill(state: SentinelDeployment) -> float:
    """Kill the primary, and let it come back as a replica; return the seconds without one."""
    await asyncio.sleep(_QUIET)
    old = state.kill_primary()
    killed = time.monotonic()
    await until(lambda: state.current() is not None, within=60.0, what="a new primary")
    away = time.monotonic() - killed
    await asyncio.to_thread(state.rejoin, old)
    return away


async def _compare(settings: Settings, answered: Sequence[_Answered]) -> LedgerComparison:
    """Compare answers with the ledger, once it has them or has had time for it."""
    expected = Counter(answered)
    with contextlib.suppress(AssertionError):
        await until(lambda: expected <= _billed(settings), within=60.0)
    await asyncio.sleep(_AFTERWARDS)
    return compare(expected, _billed(settings))


def compare(expected: Counter[_Answered], billed: Counter[_Answered]) -> LedgerComparison:
    """Return how the ledger's entries differ from the answers that callers had."""
    return LedgerComparison(
        answered=expected.total(),
        missing=(expected - billed).total(),
        surplus=(billed - expected).total(),
        twice=sum(count > 1 for count in billed.values()),
    )


def _billed(settings: Settings) -> Counter[_Answered]:
    """Return how often the ledger has each request with its status; it has refused ones, too."""
    path = settings.data_dir / "ledger.db"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        rows = connection.execute("SELECT id, requests, status FROM usage_events").fetchall()
    return Counter((one, status) for first, count, status in rows for one in ids_from(first, count))


def violations(results: Sequence[FailoverResult], compared: LedgerComparison) -> list[str]:
    """Return the claims that do not hold."""
    broken = [
        *(f"kill {n}: {r.failed} failed" for n, r in enumerate(results, 1) if r.failed),
        *(f"kill {n}: over by {r.over:.1f}" for n, r in enumerate(results, 1) if r.over > r.bound),
        *(
            f"kill {n}: {r.away:.1f} s without a primary"
            for n, r in enumerate(results, 1)
            if r.away > _LONGEST_FAILOVER
        ),
    ]
    if compared.missing or compared.surplus or compared.twice:
        broken.append("the ledger differs from the answers")
    return broken


def _show(results: Sequence[FailoverResult], compared: LedgerComparison) -> None:
    machine = this_machine()
    print(f"\n{machine.headline}\n")
    print("| kill | without a primary | 200 | 429 | other | slowest | over the limit | bound |")
    print("|---|---|---|---|---|---|---|---|")
    for number, one in enumerate(results, start=1):
        print(
            f"| {number} | {one.away:.1f} s | {one.answered} | {one.refused} | {one.failed}"
            f" | {one.slowest * 1000:.0f} ms | {one.over:+.1f} | {one.bound:.0f} |"
        )
    print(
        f"\nAnswered {compared.answered}: {compared.missing} not in the ledger,"
        f" {compared.surplus} in it without an answer, {compared.twice} twice."
    )


def _over(answers: Sequence[Answer]) -> float:
    admitted = [AdmittedRequest(one.sent, one.came) for one in answers if one.status == _OK]
    return most_over_the_limit(admitted, RULE)


def _id(answer: Answer) -> str:
    return answer.head.partition(b"x-request-id:")[2].split(b"\r\n", 1)[0].strip().decode()


def _new_texts(number: int) -> Iterator[bytes]:
    for place in itertools.count():
        yield msgspec.json.encode({"model": "stub", "input": f"new in {number}: {place}"})


def _key(number: int) -> str:
    return f"sk-sentinel-tenant-{number:02}"
