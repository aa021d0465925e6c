"""Fails over PostgreSQL and the state Redis, which four gateways use.

All processes are in one network namespace, in which packets can be dropped. Tenants with a limit
send three times as many requests as the limit allows. An operator creates tenants at the same time.
"""

import itertools
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any  # values of rows

import httpx
import msgspec
import psycopg
from typing_extensions import override

from loadtests.faults.acts import fail_over
from loadtests.faults.catalogue import Act, Case, Fault, LoadSpec
from loadtests.faults.checks import LONGEST_FAILOVER, over_admission_bound, worst_window
from loadtests.faults.children import BackendSpec, PacedBackend, gateway_process
from loadtests.faults.judge import LIMITED
from loadtests.faults.model import ModelOracle
from loadtests.faults.namespaces import lacks_programs
from loadtests.faults.processes import (
    DURABLE,
    RULE,
    SENTINELS,
    SHARE,
    STATE_TIMEOUT,
    create_tenants,
)
from loadtests.faults.topology import Topology, TopologyError, repeating
from loadtests.gateway import Gateway, one_backend
from loadtests.windows import LARGEST_LEASE
from testing.loopback import no_authorities
from testing.namespaces import NamespaceNetwork
from testing.postgresql import USER, PostgreSQLNode, PostgreSQLPair
from testing.redis_deployments import sentinel_deployment
from testing.valkey import Valkey
from testing.waiting import wait_until

_GATEWAYS, _OPERATED = 4, 2
"""The number of gateways, and how many of them have an admin listener. There are as many billing
processes and request logs as admin listeners."""
_ADMIN_KEY = "admin-key-of-the-fleet"
_RATE = 12 * RULE.capacity / RULE.window
"""Requests a second of all four tenants together. Three of them have the limit, and each of these
sends three times as many requests as its limit allows."""
_DETECTION = 3.0
"""Seconds from a fault of PostgreSQL to the promotion of the standby."""
_OVERLAP = 2.0
"""Seconds that a frozen primary runs again beside the new primary, before it is killed."""
_APART = {"both at once": 0.0, "both apart": 6.0}
"""Seconds between the fault of PostgreSQL and the kill of the state Redis, by part."""
_PAUSE = 0.25
_CONNECTING, _CHECK, _STATEMENT, _SERVERS = 3.0, 3.0, 12.0, 2
"""The most seconds to connect to PostgreSQL, to check a connection, and to execute a statement; and
the number of servers."""
LONGEST_CHANGE = _STATEMENT + 2 * (_CHECK + _SERVERS * _CONNECTING)
"""The most seconds that an operator's call takes, whatever PostgreSQL does: one statement, and two
checks of the connection, each with new connections to both servers."""
LONGEST_BILLING = _DETECTION + _OVERLAP + LONGEST_CHANGE
"""The most seconds from a fault until events are billed again."""
LEAST_SHARE = 0.5
"""The least share of its limit that a tenant must get. Without this bound, a gateway that refuses
all requests would pass."""
_Fail = Callable[[PostgreSQLNode], AbstractContextManager[None]]


class Failovers(msgspec.Struct, kw_only=True):
    """What callers saw of one failover of PostgreSQL and one of Redis. Times are in seconds."""

    ledger_away: float = 0.0
    billed_after: float = 0.0
    """Seconds from the fault until the ledger had an event from after the fault."""
    redis_away: float = 0.0
    confirmed: list[str] = []
    """Tenants that the operator created."""
    refused: int = 0
    wrong: list[str] = []
    """Answers to an operator that were neither success nor 503."""
    slowest_change: float = 0.0
    lost: list[str] = []
    """Tenants whose creation was confirmed, but that the ledger does not have."""
    unready: int = 0
    degraded: int = 0
    """Answers in which a ready gateway reported the ledger as degraded."""


class Fleet(Topology):
    """Four gateways of one worker, PostgreSQL with a standby, and a Redis under three Sentinels."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        tenants = ("free", *(f"{LIMITED}{number}" for number in range(3)))
        self.keys = {tenant: f"sk-fleet-tenant-{tenant}" for tenant in tenants}
        self.seen = Failovers()
        self._names = (f"new-{number}" for number in itertools.count())

    @override
    def start(self, stack: ExitStack) -> None:
        if reason := lacks_programs():
            raise TopologyError(reason)
        self._network = stack.enter_context(NamespaceNetwork(("fleet",)))
        stack.enter_context(self.inside())
        # If a call takes longer than this without an answer, the run has failed.
        self._client = stack.enter_context(httpx.Client(timeout=30.0, verify=no_authorities()))
        backend = PacedBackend(BackendSpec(name="eu-0", region="eu"), self._folder)
        stack.callback(backend.kill)
        backend.start()
        self.oracle = ModelOracle([backend.models])
        cache = stack.enter_context(Valkey())
        durable = (*DURABLE, "--min-replicas-to-write", "1")
        self._state = stack.enter_context(sentinel_deployment(*durable, **SENTINELS))
        self.ledger = stack.enter_context(PostgreSQLPair())
        create_tenants(self.ledger.url, self.keys)
        document = one_backend(backend.url, backend_id="eu-0") | {"limits": {"local_share": SHARE}}
        self._gateways = [
            Gateway(
                self._folder / f"gateway-{number}",
                document,
                workers=1,
                admin=number < _OPERATED,
                admin_key=_ADMIN_KEY if number < _OPERATED else "",
                cache_url=cache.url,
                state_url=self._state.url,
                state_timeout=STATE_TIMEOUT,
                ledger_url=self.ledger.url,
                secret="shared-by-the-fleet",  # noqa: S106 - of this run
                batches=False,
                shutdown_delay=0.0,
            )
            for number in range(_GATEWAYS)
        ]
        self.addresses = [("127.0.0.1", gateway.port) for gateway in self._gateways]
        for gateway in self._gateways:
            stack.enter_context(gateway)
        for number, role in itertools.product(range(_OPERATED), ("billing", "request-log")):
            settings = self._gateways[number].settings
            own = msgspec.structs.replace(settings, worker=f"consumer-{number}")
            consumer = gateway_process(role, own)
            consumer.start()
            stack.callback(consumer.stop)

    @contextmanager
    def failed_over(self, part: str, fail: _Fail, detection: float) -> Iterator[None]:
        """Make both primaries fail while an operator creates tenants.

        The old primaries return as replicas.
        """
        self.seen = Failovers()
        create = partial(next, self._create_tenants())
        with repeating(create), repeating(self._look), ThreadPoolExecutor(2) as pool:
            ledger = pool.submit(self._fail_ledger, fail, detection)
            state = pool.submit(self._fail_state, after=_APART[part])
            ledger.result()
            state.result()
        known = Counter(name for (name,) in self.ask_ledger("SELECT id FROM tenants"))
        self.seen.lost = [name for name in self.seen.confirmed if known[name] != 1]
        yield

    @override
    def inside(self) -> AbstractContextManager[None]:
        return self._network.inside("fleet")

    @override
    def unwell(self) -> Sequence[str]:
        return [
            f"gateway-{number}"
            for number, gateway in enumerate(self._gateways)
            if not self._client.get(_ready(gateway)).is_success
        ]

    @override
    def restore(self) -> None:
        """Wait until every bucket is full, because a partly full bucket could hide an excess."""
        time.sleep(RULE.window)

    @override
    def ask_ledger(self, query: str) -> list[tuple[Any, ...]]:
        place = f"host=127.0.0.1 port={self.ledger.primary.port} user={USER} dbname=postgres"
        with psycopg.connect(place, connect_timeout=3) as connection:
            return connection.execute(query.encode()).fetchall()

    def _fail_ledger(self, fail: _Fail, detection: float) -> None:
        """Make the primary fail, promote the standby, and let the former primary return."""
        began = time.monotonic()
        with fail(self.ledger.primary):
            struck = int(time.time() * 1e9)
            time.sleep(detection)
            self.ledger.promote()
            self.seen.ledger_away = time.monotonic() - began
        query = f"SELECT count(*) FROM usage_events WHERE time > {struck}"  # noqa: S608
        wait_until(lambda: self.ask_ledger(query)[0][0] > 0, what="events are billed", every=0.1)
        self.seen.billed_after = time.monotonic() - began
        self.ledger.rejoin()

    def _fail_state(self, *, after: float) -> None:
        """Kill the primary of the state Redis, and let it return as a replica."""
        time.sleep(after)
        former, self.seen.redis_away = fail_over(self._state)
        self._state.rejoin(former)

    def _create_tenants(self) -> Iterator[float]:
        """Create one tenant after another; yield the seconds until the next attempt.

        If a change gets a 503, the operator sends it again to another admin listener. The second
        answer may be 409, because the first attempt may have made the change in spite of the 503.
        """
        seen = self.seen
        for name in self._names:
            for attempt in itertools.count():
                port = self._gateways[attempt % _OPERATED].settings.admin_port
                began = time.monotonic()
                try:
                    answer = self._client.post(
                        f"http://127.0.0.1:{port}/admin/tenants",
                        json={"id": name},
                        headers={"authorization": f"Bearer {_ADMIN_KEY}"},
                    )
                    status = str(answer.status_code)
                except httpx.HTTPError as error:
                    status = type(error).__name__
                seen.slowest_change = max(seen.slowest_change, time.monotonic() - began)
                if status == "201" or (status == "409" and attempt):
                    seen.confirmed.append(name)
                    yield _PAUSE
                    break
                if status == "503":
                    seen.refused += 1
                else:
                    seen.wrong.append(status)
                yield _PAUSE

    def _look(self) -> float:
        """Ask every gateway whether it is ready; return the seconds until the next check."""
        for gateway in self._gateways:
            try:
                answer = self._client.get(_ready(gateway))
            except httpx.HTTPError:
                self.seen.unready += 1
                continue
            self.seen.unready += not answer.is_success
            self.seen.degraded += "ledger" in answer.text
        return _PAUSE


def _ready(gateway: Gateway) -> str:
    return f"http://127.0.0.1:{gateway.port}/health/ready"


def allowed_over(redis_away: float) -> float:
    """Return by how many requests a window may exceed `RULE`.

    This is the excess that a failover may cause, plus the requests that each worker may admit
    before a slow Redis answers.
    """
    ahead = _GATEWAYS * LARGEST_LEASE * RULE.capacity
    return ahead + over_admission_bound(redis_away, workers=_GATEWAYS, offered=_RATE / 4)


def broken(seen: Failovers, *, over: float, share: float) -> Iterator[str]:
    """Yield a sentence for each requirement of failovers that was not met.

    In the worst window, a tenant exceeded `RULE` by `over` requests. The tenant with the fewest
    requests got the fraction `share` of its limit.
    """
    allowed = allowed_over(seen.redis_away)
    claims = (
        (seen.redis_away <= LONGEST_FAILOVER, f"Redis was away {seen.redis_away:.1f} s"),
        (seen.billed_after <= LONGEST_BILLING, f"billing took {seen.billed_after:.1f} s"),
        (seen.slowest_change <= LONGEST_CHANGE, f"a change took {seen.slowest_change:.1f} s"),
        (over <= allowed, f"{over:.1f} requests over the limit"),
        (share >= LEAST_SHARE, f"a tenant got only {share:.2f} of its limit"),
        (bool(seen.confirmed), "no change was made"),
        (not seen.wrong, f"changes were answered {dict(Counter(seen.wrong))}"),
        (not seen.lost, f"confirmed changes are lost: {', '.join(seen.lost)}"),
        (not seen.unready, f"gateways were not ready {seen.unready} times"),
    )
    yield from (finding for holds, finding in claims if not holds)


def failovers_hold(case: Case) -> Iterator[str]:
    """Judge limits, billing and changes during the failovers."""
    seen: Failovers = case.topology.seen
    over, share = worst_window(case)
    for name, value in msgspec.structs.asdict(seen).items():
        case.figures[name] = len(value) if isinstance(value, list) else round(value, 1)
    case.figures.update(over=round(over), bound=round(allowed_over(seen.redis_away)))
    return broken(seen, over=over, share=share)


# --- Faults of the primary PostgreSQL. When their context ends, the primary has ended.


@contextmanager
def _killed(node: PostgreSQLNode) -> Iterator[None]:
    node.kill()
    yield


@contextmanager
def _stopped(node: PostgreSQLNode) -> Iterator[None]:
    node.stop()
    yield


@contextmanager
def _frozen(node: PostgreSQLNode) -> Iterator[None]:
    """Pause the primary's processes, and resume them for a moment while the new primary runs."""
    node.pause()
    yield
    node.resume()
    time.sleep(_OVERLAP)
    node.end()


@contextmanager
def _cut(node: PostgreSQLNode) -> Iterator[None]:
    """Drop all packets from and to the primary's port, in this network namespace."""

    def change(action: str) -> None:
        for end in ("--dport", "--sport"):
            rule = ("INPUT", "-p", "tcp", end, str(node.port), "-j", "DROP")
            subprocess.run(["iptables", "--wait", action, *rule], check=True)  # noqa: S607

    change("-A")
    try:
        yield
        node.end()
    finally:
        change("-D")


def _failing(fail: _Fail, detection: float = _DETECTION) -> Act:
    return lambda topology, part: topology.failed_over(part, fail, detection)


_fault = partial(
    Fault,
    parts=tuple(_APART),
    topology="namespaces",
    hold=5.0,
    load=LoadSpec(rate=_RATE, repeated=0.8, hasty=0.0),
    setup="fleet",
    checks=(failovers_hold,),
)
_REDIS = "and kills the primary state Redis"
_BACK = "it comes back as the standby"
FAULTS = (
    _fault("ledger-kill", f"kills the primary PostgreSQL, {_REDIS}", _BACK, _failing(_killed)),
    _fault("ledger-freeze", f"stops the primary by SIGSTOP, {_REDIS}",
           "it lives again beside the new one", _failing(_frozen)),
    _fault("ledger-cut", f"drops all packets of the primary, {_REDIS}", _BACK, _failing(_cut)),
    _fault("ledger-switchover", f"ends the primary in order, {_REDIS}", _BACK,
           _failing(_stopped, 0.0)),
)  # fmt: skip
