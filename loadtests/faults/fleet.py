"""Fails over PostgreSQL and the state Redis of four gateways, like a cluster manager.

All processes are in one network namespace, in which packets can be dropped. Tenants with a limit
send three times the requests that it allows. An operator creates tenants at the same time.
"""

import itertools
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self  # Any: values of rows

import httpx
import msgspec
import psycopg

from loadtests.faults.catalogue import Case, Fault, LoadSpec
from loadtests.faults.judge import LIMITED, LedgerRow
from loadtests.faults.limits import LONGEST_FAILOVER, over_admission_bound, worst_window
from loadtests.faults.model import ModelOracle, write_revision
from loadtests.faults.paced_backend import BackendSpec, PacedBackend
from loadtests.faults.processes import (
    RULE,
    SHARE,
    STATE_TIMEOUT,
    Consumer,
    create_tenants,
    repeating,
)
from loadtests.faults.topology import LEDGER_QUERY, TopologyError, ledger_rows
from loadtests.gateway import Gateway
from loadtests.windows import LARGEST_LEASE
from testing.loopback import no_authorities
from testing.namespaces import NamespaceNetwork, missing
from testing.postgresql import programs
from testing.postgresql_pair import PostgreSQLPair
from testing.redis_deployments import sentinel_deployment
from testing.valkey import Valkey
from testing.waiting import wait_until

GATEWAYS, OPERATED = 4, 2
"""The number of gateways, and of gateways with an admin listener. There are as many billing
processes and request logs as admin listeners."""
_ADMIN_KEY = "admin-key-of-the-fleet"
_RATE = 12 * RULE.capacity / RULE.window
"""Requests a second of four tenants together. Three of them have the limit, and each sends three
times what it allows."""
_DETECTION = 3.0
"""Seconds from a fault of PostgreSQL to the promotion of the standby."""
_OVERLAP = 2.0
"""Seconds that a frozen primary runs again beside its successor, before it is killed."""
_APART = 6.0
_DOWN_AFTER = 1.5
_PAUSE, _LOOK = 0.25, 0.1
_CONNECTING, _CHECK, _STATEMENT, _SERVERS = 3.0, 3.0, 12.0, 2
"""Seconds that a connection to PostgreSQL, its check and a statement take at most; servers."""
LONGEST_CHANGE = _STATEMENT + 2 * (_CHECK + _SERVERS * _CONNECTING)
"""The most seconds of an operator's call, whatever PostgreSQL does: one statement, and twice a
check of the connection with new connections to each server."""
LONGEST_BILLING = _DETECTION + _OVERLAP + LONGEST_CHANGE
"""Seconds from a fault to the first event that is billed again, at most."""
LEAST_SHARE = 0.5
"""The least share of its limit that a tenant must get. Without this bound, a gateway that refuses
all requests would pass."""
# What is confirmed survives a crash, and a primary without replicas takes no writes.
_DURABLE = ("--appendonly", "yes", "--min-replicas-to-write", "1")


class Failovers(msgspec.Struct, frozen=True, kw_only=True):
    """One failover of PostgreSQL and one of Redis, seen from outside. Times are in seconds.

    `wrong` counts answers to an operator other than success and 503.
    """

    ledger_away: float
    billed_after: float
    """Seconds from the fault until the ledger had an event from after the fault."""
    redis_away: float
    changes: int
    refused: int
    wrong: Mapping[str, int]
    slowest_change: float
    lost: Sequence[str]
    """Confirmed changes that the ledger does not have."""
    unready: int
    degraded: int
    """Answers of ready gateways that named the ledger as degraded."""


class Fleet:
    """Four gateways of one worker, PostgreSQL with a standby, and a Redis under three Sentinels."""

    name = "namespaces"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        tenants = ("free", *(f"{LIMITED}{number}" for number in range(3)))
        self.keys = {tenant: f"sk-fleet-tenant-{tenant}" for tenant in tenants}
        self.seen: Failovers
        self._names = (f"new-{number}" for number in itertools.count())

    def __enter__(self) -> Self:
        if reason := missing() or (programs() is None and "PostgreSQL is not installed"):
            raise TopologyError(reason)
        with ExitStack() as stack:
            self._network = stack.enter_context(NamespaceNetwork(("fleet",)))
            stack.enter_context(self.inside())
            spec = BackendSpec(name="eu-0", region="eu")
            backend = PacedBackend(spec, self._folder, lambda root: write_revision(root, 1))
            stack.callback(backend.kill)
            backend.start()
            self.oracle = ModelOracle([backend.models])
            cache = stack.enter_context(Valkey())
            self._state = stack.enter_context(
                sentinel_deployment(*_DURABLE, replicas=2, sentinels=3, down_after=_DOWN_AFTER)
            )
            self._ledger = stack.enter_context(PostgreSQLPair())
            create_tenants(self._ledger.url, self.keys)
            places = [{"id": "eu-0", "url": f"http://127.0.0.1:{backend.port}"}]
            document = {
                "regions": [{"name": "eu", "pools": [{"backends": places}]}],
                "limits": {"local_share": SHARE},
            }
            self._gateways = [
                Gateway(
                    self._folder / f"gateway-{number}",
                    document,
                    workers=1,
                    admin=number < OPERATED,
                    admin_key=_ADMIN_KEY if number < OPERATED else "",
                    cache_url=cache.url,
                    state_url=self._state.url,
                    state_timeout=STATE_TIMEOUT,
                    ledger_url=self._ledger.url,
                    secret="shared-by-the-fleet",  # noqa: S106 - of this run
                    batches=False,
                    shutdown_delay=0.0,
                )
                for number in range(GATEWAYS)
            ]
            for gateway in self._gateways:
                stack.enter_context(gateway)
            for number, role in itertools.product(range(OPERATED), ("billing", "request-log")):
                own = self._gateways[number].settings
                own = msgspec.structs.replace(own, worker=f"consumer-{number}")
                consumer = Consumer(role, own)
                consumer.start()
                stack.callback(consumer.stop)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def parts(self, fault: str) -> Sequence[str]:
        """Return whether the state Redis is killed with PostgreSQL, or 6 s after it."""
        return ("both at once", "both apart")

    @contextmanager
    def inject(self, fault: str, part: str) -> Iterator[None]:
        """Fail both over, while an operator creates tenants, and let both servers come back."""
        operator = _Operator(self._gateways, self._names)
        with repeating(operator.change), repeating(operator.look), ThreadPoolExecutor(2) as pool:
            ledger = pool.submit(self._fail_ledger, fault)
            state = pool.submit(self._fail_state, after=_APART if "apart" in part else 0.0)
            ledger_away, billed_after = ledger.result()
            redis_away = state.result()
        tenants = Counter(name for (name,) in self._ask("SELECT id FROM tenants"))
        self.seen = Failovers(
            ledger_away=ledger_away,
            billed_after=billed_after,
            redis_away=redis_away,
            changes=len(operator.confirmed),
            refused=operator.refused,
            wrong=operator.wrong,
            slowest_change=operator.slowest,
            lost=[name for name in operator.confirmed if tenants[name] != 1],
            unready=operator.unready,
            degraded=operator.degraded,
        )
        yield

    @property
    def addresses(self) -> Sequence[tuple[str, int]]:
        """Hosts and ports of the gateways."""
        return [("127.0.0.1", gateway.port) for gateway in self._gateways]

    def inside(self) -> AbstractContextManager[None]:
        """Enter the namespace."""
        return self._network.inside("fleet")

    def unwell(self) -> Sequence[str]:
        """Return the gateways that are not ready."""
        with httpx.Client(timeout=LONGEST_CHANGE, verify=no_authorities()) as client:
            return [
                f"gateway-{number}"
                for number, gateway in enumerate(self._gateways)
                if not client.get(f"http://127.0.0.1:{gateway.port}/health/ready").is_success
            ]

    def billed(self, since: float) -> Sequence[LedgerRow]:
        """Return the ledger's requests since a time."""
        return ledger_rows(self._ask(LEDGER_QUERY.format(since=int(since * 1e9))))

    def counters(self) -> Mapping[str, float]:
        """Return nothing: the checks count requests."""
        return {}

    def restore(self) -> None:
        """Wait until every bucket is full, so that no missing unit hides a request too many."""
        time.sleep(RULE.window)

    def _fail_ledger(self, fault: str) -> tuple[float, float]:
        """Return the seconds until there was a new primary, and until it had new events."""
        old, began = self._ledger.primary, time.monotonic()
        with ExitStack() as stack:
            if fault == "ledger-kill":
                old.kill()
            elif fault == "ledger-freeze":
                old.pause()
            elif fault == "ledger-cut":
                stack.enter_context(_dropping(old.port))
            else:
                old.stop()
            struck = int(time.time() * 1e9)
            if fault != "ledger-switchover":
                time.sleep(_DETECTION)
            self._ledger.promote()
            promoted = time.monotonic()
            if fault == "ledger-freeze":
                old.resume()
                time.sleep(_OVERLAP)
            old.end()
        query = f"SELECT count(*) FROM usage_events WHERE time > {struck}"  # noqa: S608
        wait_until(lambda: self._ask(query)[0][0] > 0, what="events are billed", every=_LOOK)
        billed = time.monotonic()
        self._ledger.rejoin()
        return promoted - began, billed - began

    def _fail_state(self, *, after: float) -> float:
        """Kill the primary, and let it come back as a replica; return the seconds without one."""
        time.sleep(after)
        old = self._state.kill_primary()
        killed = time.monotonic()
        wait_until(lambda: self._state.current() is not None, what="a new primary")
        away = time.monotonic() - killed
        self._state.rejoin(old)
        return away

    def _ask(self, query: str) -> list[tuple[Any, ...]]:
        place = f"host=127.0.0.1 port={self._ledger.primary.port} user=tests dbname=postgres"
        with psycopg.connect(place, connect_timeout=3) as connection:
            return connection.execute(query.encode()).fetchall()


class _Operator:
    """Creates one tenant after the other, and asks gateways whether they are ready.

    A change that was answered with 503 is sent again, to another admin listener. The answer may
    then be 409, because the first attempt made the change.
    """

    def __init__(self, gateways: Sequence[Gateway], names: Iterator[str]) -> None:
        self._gateways = gateways
        self._names = names
        self._tenant, self._attempt = next(names), 0
        # A call without an answer for longer has failed the run.
        self._client = httpx.Client(timeout=30.0, verify=no_authorities())
        self.confirmed: list[str] = []
        self.refused = self.unready = self.degraded = 0
        self.wrong = Counter[str]()
        self.slowest = 0.0

    def change(self) -> float:
        """Try to create a tenant; return the seconds until the next attempt."""
        port = self._gateways[self._attempt % OPERATED].settings.admin_port
        began = time.monotonic()
        try:
            status = self._client.post(
                f"http://127.0.0.1:{port}/admin/tenants",
                json={"id": self._tenant},
                headers={"authorization": f"Bearer {_ADMIN_KEY}"},
            ).status_code
        except httpx.HTTPError as error:
            status = 0
            self.wrong[type(error).__name__] += 1
        self.slowest = max(self.slowest, time.monotonic() - began)
        if status == httpx.codes.CREATED or (status == httpx.codes.CONFLICT and self._attempt):
            self.confirmed.append(self._tenant)
            self._tenant, self._attempt = next(self._names), 0
            return _PAUSE
        self._attempt += 1
        if status == httpx.codes.SERVICE_UNAVAILABLE:
            self.refused += 1
        elif status:
            self.wrong[str(status)] += 1
        return _PAUSE

    def look(self) -> float:
        """Ask every gateway whether it is ready; return the seconds until the next time."""
        for gateway in self._gateways:
            try:
                answer = self._client.get(f"http://127.0.0.1:{gateway.port}/health/ready")
            except httpx.HTTPError:
                self.unready += 1
                continue
            self.unready += not answer.is_success
            self.degraded += "ledger" in answer.text
        return _PAUSE


def allowed_over(redis_away: float) -> float:
    """Return by how many requests a window may be over `RULE`.

    This is the bound of a failover, and the requests that each worker may admit ahead while Redis
    is late.
    """
    ahead = GATEWAYS * LARGEST_LEASE * RULE.capacity
    return ahead + over_admission_bound(redis_away, workers=GATEWAYS, offered=_RATE / 4)


def broken(seen: Failovers, *, over: float, share: float) -> Iterator[str]:
    """Yield a sentence for each requirement of failovers that was not met.

    In the worst window, a tenant was `over` requests over `RULE`. The tenant with the fewest
    requests got the fraction `share` of its limit.
    """
    bounded = (
        ("Redis was away", seen.redis_away, LONGEST_FAILOVER),
        ("billing took", seen.billed_after, LONGEST_BILLING),
        ("a change took", seen.slowest_change, LONGEST_CHANGE),
    )
    yield from (f"{what} {took:.1f} s" for what, took, longest in bounded if took > longest)
    if over > allowed_over(seen.redis_away):
        yield f"{over:.1f} requests over the limit"
    if share < LEAST_SHARE:
        yield f"a tenant got only {share:.2f} of its limit"
    if not seen.changes:
        yield "no change was made"
    if seen.wrong:
        yield f"changes were answered {dict(seen.wrong)}"
    if seen.lost:
        yield f"confirmed changes are lost: {', '.join(seen.lost)}"
    if seen.unready:
        yield f"gateways were not ready {seen.unready} times"


def failovers_hold(case: Case) -> Iterator[str]:
    """Judge limits, billing and changes around the failovers."""
    seen: Failovers = case.topology.seen
    over, share = worst_window(case)
    case.figures.update(
        ledger_away=round(seen.ledger_away, 1),
        billed_after=round(seen.billed_after, 1),
        redis_away=round(seen.redis_away, 1),
        over=round(over),
        bound=round(allowed_over(seen.redis_away)),
        changes=f"{seen.changes} ({seen.refused} times 503)",
        slowest_change=round(seen.slowest_change, 1),
        degraded=seen.degraded,
    )
    return broken(seen, over=over, share=share)


@contextmanager
def _dropping(port: int) -> Iterator[None]:
    """Drop all packets from and to a port, in this network namespace."""

    def change(action: str) -> None:
        for end in ("--dport", "--sport"):
            rule = ("INPUT", "-p", "tcp", end, str(port), "-j", "DROP")
            subprocess.run(["iptables", "--wait", action, *rule], check=True)  # noqa: S607

    change("-A")
    try:
        yield
    finally:
        change("-D")


_FAULTS = {
    "ledger-kill": ("kills the primary PostgreSQL", "it comes back as the standby"),
    "ledger-freeze": ("stops the primary by SIGSTOP", "it lives again beside the new one"),
    "ledger-cut": ("drops all packets of the primary", "it comes back as the standby"),
    "ledger-switchover": ("ends the primary in order", "it comes back as the standby"),
}
FAULTS = tuple(
    Fault(
        name=name,
        what=f"{what}, and kills the primary state Redis",
        undo=undo,
        topologies=("namespaces",),
        hold=5.0,
        load=LoadSpec(rate=_RATE, repeated=0.8, hasty=0.0),
        setup="fleet",
        checks=(failovers_hold,),
    )
    for name, (what, undo) in _FAULTS.items()
)
