"""Fails over PostgreSQL and the state Redis, which four gateways use.

Tenants with a limit send three times as many requests as the limit allows. An operator creates
tenants at the same time.
"""

import itertools
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import httpx
import msgspec

from loadtests.faults.catalogue import Act, Case, Fault, LoadSpec
from loadtests.faults.judge import LIMITED
from loadtests.faults.process_faults import (
    LONGEST_FAILOVER,
    fail_over,
    over_admission_bound,
    worst_window,
)
from loadtests.faults.processes import OPERATED, RULE, TWO_BY_TWO, Processes, Setup
from loadtests.faults.topology import repeating
from loadtests.windows import LARGEST_LEASE
from testing.loopback import is_answered
from testing.postgresql import PostgreSQLNode
from testing.waiting import wait_until

_GATEWAYS = 4
_TENANTS = ("free", *(f"{LIMITED}{number}" for number in range(3)))
_RATE = 3 * len(_TENANTS) * RULE.capacity / RULE.window
"""Requests a second of all tenants together."""
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
    """How often a gateway was not ready."""


def _failing(fail: _Fail, detection: float = _DETECTION) -> Act:
    """Return an `Act` that makes both primaries fail while an operator creates tenants.

    The old primaries return as replicas.
    """

    @contextmanager
    def act(topology: Processes, part: str) -> Iterator[None]:
        seen = topology.notes["seen"] = Failovers()
        create, look = (
            partial(next, _create_tenants(topology, seen)),
            partial(_look, topology, seen),
        )
        with repeating(create), repeating(look), ThreadPoolExecutor(2) as pool:
            ledger = pool.submit(_fail_ledger, topology, seen, fail, detection)
            state = pool.submit(_fail_state, topology, seen, _APART[part])
            ledger.result()
            state.result()
        known = Counter(name for (name,) in topology.ask_ledger("SELECT id FROM tenants"))
        seen.lost = [name for name in seen.confirmed if known[name] != 1]
        yield

    return act


def _fail_ledger(topology: Processes, seen: Failovers, fail: _Fail, detection: float) -> None:
    """Make the primary fail, promote the standby, and let the former primary return."""
    began = time.monotonic()
    with fail(topology.ledger.primary):
        struck = int(time.time() * 1e9)
        time.sleep(detection)
        topology.ledger.promote()
        seen.ledger_away = time.monotonic() - began
    query = f"SELECT count(*) FROM usage_events WHERE time > {struck}"  # noqa: S608
    wait_until(lambda: topology.ask_ledger(query)[0][0] > 0, what="events are billed", every=0.1)
    seen.billed_after = time.monotonic() - began
    topology.ledger.rejoin()


def _fail_state(topology: Processes, seen: Failovers, after: float) -> None:
    """Kill the primary of the state Redis, and let it return as a replica."""
    time.sleep(after)
    state = topology.sentinels("state")
    former, seen.redis_away = fail_over(state)
    state.rejoin(former)


def _create_tenants(topology: Processes, seen: Failovers) -> Iterator[float]:
    """Create one tenant after another; yield the seconds until the next attempt.

    If a change gets a 503, the operator sends it again to another admin listener. The second
    answer may be 409, because the first attempt may have made the change in spite of the 503.
    """
    for number in itertools.count(time.monotonic_ns()):
        body = {"id": f"new-{number}"}
        for attempt in itertools.count():
            began = time.monotonic()
            try:
                with topology.admin(attempt % OPERATED) as admin:
                    status = str(admin.post("/admin/tenants", json=body).status_code)
            except httpx.HTTPError as error:
                status = type(error).__name__
            seen.slowest_change = max(seen.slowest_change, time.monotonic() - began)
            if status == "201" or (status == "409" and attempt):
                seen.confirmed.append(body["id"])
                yield _PAUSE
                break
            if status == "503":
                seen.refused += 1
            else:
                seen.wrong.append(status)
            yield _PAUSE


def _look(topology: Processes, seen: Failovers) -> float:
    """Ask every gateway whether it is ready; return the seconds until the next check."""
    for gateway in topology.gateways:
        is_ready = is_answered(f"http://127.0.0.1:{gateway.port}/health/ready", timeout=30.0)
        seen.unready += not is_ready
    return _PAUSE


def allowed_over(redis_away: float) -> float:
    """Return by how many requests a window may exceed `RULE`.

    This is the excess that a failover may cause, plus the requests that each worker may admit
    before a slow Redis answers.
    """
    ahead = _GATEWAYS * LARGEST_LEASE * RULE.capacity
    offered = _RATE / len(_TENANTS)
    return ahead + over_admission_bound(redis_away, workers=_GATEWAYS, offered=offered)


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
    seen: Failovers = case.topology.notes["seen"]
    over, share = worst_window(case)
    for name, value in msgspec.structs.asdict(seen).items():
        case.figures[name] = len(value) if isinstance(value, list) else round(value, 1)
    case.figures.update(over=round(over), bound=round(allowed_over(seen.redis_away)))
    # The next case begins with full buckets: a partly full bucket could hide an excess.
    time.sleep(RULE.window)
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
    yield
    node.end()
    change("-D")


_fault = partial(
    Fault,
    parts=tuple(_APART),
    topology="namespaces",
    hold=5.0,
    load=LoadSpec(rate=_RATE, repeated=0.8, hasty=0.0),
    setup=Setup(
        backends=TWO_BY_TWO[:1],
        gateways=_GATEWAYS,
        workers=1,
        sentinels=("state",),
        tenants=_TENANTS,
        has_standby=True,
    ),
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
