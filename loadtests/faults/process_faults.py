"""Lists the faults of the topology `processes`, with their acts and their checks."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from loadtests.faults.catalogue import Case, Check, Fault, LoadSpec
from loadtests.faults.children import CAPACITY, Child, runs
from loadtests.faults.judge import LIMITED, SETTLED, Window, p99s
from loadtests.faults.processes import (
    RULE,
    SHARE,
    STATE_TIMEOUT,
    TWO_BY_TWO,
    WITH_A_LIMIT,
    Processes,
    Setup,
)
from loadtests.faults.topology import Topology
from loadtests.windows import AdmittedRequest, bound, failover_bound, most_over_the_limit
from sluicegate.gateway.settings import Settings
from testing.redis_deployments import FAILOVER_TIMEOUT, SentinelDeployment
from testing.valkey import Valkey
from testing.waiting import wait_until

_SUPERVISED = {"worker": "gateway", "shipper": "shipper", "admin": "admin", "batches": "batches"}
"""The parts that the gateway's supervisor restarts, and their roles."""
_AWAY = 5.0
"""For this many seconds before a power cut the state Redis is down, so that no event is shipped."""
_MOST_ATTEMPTS = 1.2
_ALLOWED = 0.020
"""Seconds by which a fault of a Redis may raise the p99 of misses."""
LONGEST_FAILOVER = 1.5 + 2 * FAILOVER_TIMEOUT + 4.0
"""The most seconds until there is a new primary. Sentinels repeat an election without a winner
once."""
_SYNC = 0.5
"""The most seconds that a sync takes. Events that arrive meanwhile wait for the next sync."""
_MAY_LOSE = Settings().events_sync_interval + _SYNC
"""A power cut may lose the events of this many seconds."""


# --- Acts


@contextmanager
def kill(topology: Processes, part: str) -> Iterator[None]:
    """Kill all processes of a part."""
    if part in _SUPERVISED:
        running = topology.gateway.processes()
        victim = next(pid for name, pid in running.items() if name.startswith(_SUPERVISED[part]))
        os.kill(victim, signal.SIGKILL)
        yield  # the supervisor starts it again
        return
    before = topology.gateway.processes().values()
    for each in topology.members(part):
        each.kill()
    if part == "gateway":
        wait_until(lambda: not any(map(runs, before)), what="all its processes ended")
    yield
    for each in topology.members(part):
        each.start()
    topology.wait_for_backends()


@contextmanager
def stop(topology: Processes, part: str) -> Iterator[None]:
    """Pause a part by SIGSTOP: the part keeps its connections but answers nothing."""
    members = [each for each in topology.members(part) if isinstance(each, Valkey | Child)]
    for each in members:
        each.pause()
    try:
        yield
    finally:
        for each in members:
            each.resume()


@contextmanager
def _full(topology: Processes, part: str) -> Iterator[None]:
    """Fill the memory of a Redis that evicts nothing."""
    redis = topology.server(part)
    redis.configure("maxmemory-policy", "noeviction")
    redis.configure("maxmemory", "1")
    yield
    redis.configure("maxmemory", "0")


@contextmanager
def _failover(topology: Processes, part: str) -> Iterator[None]:
    """Kill the primary of a Redis, and record the seconds without a primary as `away`."""
    deployment = topology.sentinels(part)
    former, topology.notes["away"] = fail_over(deployment)
    yield
    deployment.rejoin(former)


def fail_over(deployment: SentinelDeployment) -> tuple[Valkey, float]:
    """Kill the primary. Return the killed server, and the seconds without a primary."""
    former = deployment.kill_primary()
    killed = time.monotonic()
    wait_until(lambda: deployment.current() is not None, what="a new primary")
    return former, time.monotonic() - killed


@contextmanager
def _power_cut(topology: Processes, part: str) -> Iterator[None]:
    """Cut the power of the gateway's machine: all data that was not synced to its disk is lost."""
    state = topology.server("state")
    topology.notes["gaps"] = _gaps(topology)
    if part == "gateway-without-redis":
        state.kill()
        time.sleep(_AWAY)
    topology.notes["cut"] = time.monotonic()
    with kill(topology, "gateway"):
        topology.disk.cut_power()
        yield
        if not state.is_running:
            state.start()


# --- Checks


def few_attempts(case: Case) -> Iterator[str]:
    """Find out whether items took too many attempts on average, including retries and hedges."""
    grown = _growth(case)
    first = grown["computed"] + grown["failed"]
    if first <= 0:
        yield "no worker told of its items"
        return
    attempts = (first + grown["retried"] + grown["hedged"]) / first
    case.figures["attempts"] = round(attempts, 3)
    if attempts > _MOST_ATTEMPTS:
        yield f"{attempts:.2f} attempts per item"


def misses_go_on(*parts: str) -> Check:
    """Return a check that finds misses that were slower during a Redis fault than before."""

    def check(case: Case) -> Iterator[str]:
        if case.part not in parts:
            return
        misses = [each for each in case.sent if not each.is_repeat]
        before, during, after = p99s(misses, begun=case.begun, ended=case.ended)
        # Other work on the machine slows the misses before, during and after the fault.
        usual = max(before, after)
        case.figures["miss_p99_added_ms"] = round(1000 * (during - usual), 1)
        if during > usual + _ALLOWED:
            yield f"p99 of misses rose from {usual:.3f} to {during:.3f} s"

    return check


def breaker_opens(*parts: str) -> Check:
    """Return a check that fails if a Redis of `parts` was away but no circuit breaker opened."""

    def check(case: Case) -> Iterator[str]:
        if case.part in parts:
            opened = case.figures["breaker_opened"] = _growth(case)[f"{case.part} breaker"]
            if opened <= 0:
                yield f"the breaker of the {case.part} Redis did not open"

    return check


def limits_hold(case: Case) -> Iterator[str]:
    """Find a window with more requests than the limit plus the excess that a failover may cause."""
    away = case.topology.notes["away"]
    over, _ = worst_window(case)
    rate = len(case.sent) / len(case.topology.keys) / (case.sent[-1].due - case.sent[0].due)
    allowed = over_admission_bound(away, workers=case.topology.setup.workers, offered=rate)
    case.figures.update(away=round(away, 1), over=round(over, 1), bound=round(allowed, 1))
    if over > allowed:
        yield f"{over:.1f} requests over the limit"
    if away > LONGEST_FAILOVER:
        yield f"{away:.1f} s without a primary"


def worst_window(case: Case) -> tuple[float, float]:
    """Return by how many requests the worst window of a limited tenant exceeded `RULE`.

    Also return the fraction of its limit that the tenant with the fewest admitted requests got.
    """
    lasted = case.sent[-1].due - case.sent[0].due

    def admitted(tenant: str) -> list[AdmittedRequest]:
        mine = (each for each in case.sent if each.tenant == tenant and each.status == 200)
        return [AdmittedRequest(each.due, each.came) for each in mine]

    found = [admitted(tenant) for tenant in case.topology.keys if tenant.startswith(LIMITED)]
    over = max(most_over_the_limit(each, RULE) for each in found)
    return over, min(map(len, found)) / bound(RULE, lasted)


def over_admission_bound(away: float, *, workers: int, offered: float) -> float:
    """Return by how many requests a window may exceed `RULE` if Redis was away for `away` s."""
    unaware = away + STATE_TIMEOUT + 1.0
    return failover_bound(RULE, share=SHARE, workers=workers, unaware=unaware, offered=offered)


def loss_is_bounded(case: Case) -> Iterator[str]:
    """Find lost events of old answers, and lost events that the ledger does not report as lost."""
    billed = {row.id for row in case.topology.billed(0.0)}
    lost = [each for each in case.sent if each.status == 200 and each.id not in billed]
    counted = _gaps(case.topology) - case.topology.notes["gaps"]
    oldest = case.topology.notes["cut"] - min((each.came for each in lost), default=float("inf"))
    case.figures.update(lost=len(lost), counted_as_lost=counted)
    if lost and not counted:
        yield f"{len(lost)} answers are lost, and none is counted"
    if oldest > _MAY_LOSE:
        yield f"an answer is lost that came {oldest:.2f} s before the cut"


def _gaps(topology: Topology) -> int:
    """Return how many requests the ledger has counted as lost since its creation."""
    ((counted,),) = topology.ask_ledger("SELECT sum(last - first + 1) FROM gaps")
    return int(counted or 0)


def _growth(case: Case) -> dict[str, float]:
    """Return the increase of each counter. The counter of a killed process starts again at 0."""
    start, end = case.counters["start"], case.counters["end"]
    return {
        name: count - start.get(name, 0.0) if count >= start.get(name, 0.0) else count
        for name, count in end.items()
    }


# --- The table

_BACKENDS = ("backend eu-0", "region eu")
_REDIS = ("cache", "state")
_OWN = ("worker", "shipper", "admin", "billing", "request-log", "gateway")
# A miss can wait for the state Redis, whose timeout is longer than that of the cache Redis.
_CHECKS = (few_attempts, breaker_opens(*_REDIS), misses_go_on("cache"))
_HITS = LoadSpec(rate=120.0, repeated=0.7, hasty=0.0)
_REGIONAL = LoadSpec(rate=0.3 * CAPACITY * len(TWO_BY_TWO))
"""A load of 60 % of the rate that one region can compute without the other."""


_usual = partial(Fault, parts=_BACKENDS, load=_REGIONAL, checks=_CHECKS)

FAULTS = (
    _usual("kill", "ends all processes of a part with SIGKILL",
           "its supervisor, or the runner, starts it again", kill,
           parts=(*_OWN, *_BACKENDS, *_REDIS), hold=10.0,
           windows={"worker": Window(after_begin=3.0),
                    "gateway": Window(is_open=True, after_end=3.0)}),
    _usual("stop", "stops a part with SIGSTOP: it keeps connections, and is silent", "SIGCONT",
           stop, parts=(*_BACKENDS, *_REDIS)),
    # A cache that refuses writes still answers reads.
    Fault("full", "leaves no memory to a Redis that evicts nothing, so that it refuses writes",
          "it has memory again", _full, _REDIS, load=_HITS,
          checks=(misses_go_on(*_REDIS), breaker_opens("state"))),
    Fault("failover",
          "kills the primary of a Redis under three Sentinels, while tenants exceed their limit",
          "the killed server comes back as a replica", _failover, _REDIS, hold=SETTLED,
          load=LoadSpec(rate=150.0, repeated=0.6, hasty=0.0),
          setup=Setup(sentinels=_REDIS, tenants=WITH_A_LIMIT),
          checks=(limits_hold, misses_go_on("cache"), breaker_opens("cache"))),
    Fault("power-cut", "kills the gateway, and takes from its disk what was not written",
          "the gateway starts on what is left", _power_cut,
          ("gateway", "gateway-without-redis"), hold=1.0,
          windows={"gateway": Window(is_open=True, after_end=3.0)},
          load=LoadSpec(rate=100.0, repeated=0.7, hasty=0.0),
          setup=Setup(workers=1, disk_bytes=192 << 20), may_lose=_MAY_LOSE,
          checks=(loss_is_bounded,)),
)  # fmt: skip
