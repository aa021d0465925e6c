"""Lists the faults of the topology `processes`, with their acts and their checks."""

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from loadtests.faults.catalogue import Act, Case, Check, Fault, LoadSpec
from loadtests.faults.children import CAPACITY, BackendSpec, Child, runs
from loadtests.faults.judge import LIMITED, SETTLED, Window, p99s, percentile
from loadtests.faults.processes import (
    RULE,
    SHARE,
    STATE_TIMEOUT,
    TWO_BY_TWO,
    WITH_A_LIMIT,
    Processes,
    Setup,
)
from loadtests.faults.proxy import SOUND, ProxyFault
from loadtests.faults.topology import Topology, repeating
from loadtests.windows import AdmittedRequest, bound, failover_bound, most_over_the_limit
from sluicegate.gateway.settings import Settings
from testing.redis_deployments import FAILOVER_TIMEOUT, SentinelDeployment
from testing.valkey import Valkey
from testing.waiting import wait_until

_SUPERVISED = {"worker": "gateway", "shipper": "shipper", "admin": "admin", "batches": "batches"}
"""The parts that the gateway's supervisor restarts, and their roles."""
_LATE = 0.2
"""Seconds by which replies of a slow Redis are delayed."""
_EARLIER = 4.0
"""Seconds by which one backend returns before the other backends."""
_AWAY = 5.0
"""For this many seconds before a power cut the state Redis is down, so that no event is shipped."""
_MOST_ATTEMPTS = 1.2
_ALLOWED = 0.020
"""Seconds by which a fault of a Redis may raise the p99 of misses."""
LONGEST_FAILOVER = 1.5 + 2 * FAILOVER_TIMEOUT + 4.0
"""The most seconds until there is a new primary. Sentinels repeat an election without a winner
once."""
_EXPLAINED = {0, 200, 409, 429, 500, 502, 503, 504}
"""Statuses that a kill may cause."""
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
def _kill_at_random(topology: Processes, _: str) -> Iterator[None]:
    """Kill a worker or a Redis about every second. It starts again at once."""
    killed = topology.notes["killed"] = Counter[str]()

    def kill_one() -> float:
        victim = random.choice(("worker", "worker", "state", "cache"))
        killed[victim] += 1
        if victim == "worker":
            processes = topology.gateway.processes().items()
            workers = [pid for name, pid in processes if name.startswith("gateway")]
            with suppress(ProcessLookupError, IndexError):
                os.kill(random.choice(workers), signal.SIGKILL)
        else:
            topology.server(victim).kill()
            time.sleep(random.uniform(0.0, 0.5))
            topology.server(victim).start()
        return random.uniform(0.4, 1.6)

    with repeating(kill_one):
        yield


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


def _proxied(**fault: float) -> Act:
    """Return an `Act` that makes the proxies of backends behave as `ProxyFault(**fault)`."""

    @contextmanager
    def act(topology: Processes, part: str) -> Iterator[None]:
        for backend in topology.backends_of(part):
            topology.set_fault(backend, ProxyFault(**fault))  # type: ignore[arg-type]
        yield
        for backend in topology.backends_of(part):
            topology.set_fault(backend, SOUND)

    return act


@contextmanager
def _refuse_all(topology: Processes, part: str) -> Iterator[None]:
    """Refuse the calls of all backends.

    At the end of the fault, the last backend in the list accepts calls some seconds before the
    other backends.
    """
    *others, last = topology.backends_of(part)
    for backend in (*others, last):
        topology.set_fault(backend, ProxyFault(refuses=True))
    yield
    topology.set_fault(last, SOUND)
    for backend in others:
        threading.Timer(_EARLIER, partial(topology.set_fault, backend, SOUND)).start()


@contextmanager
def _revision(topology: Processes, part: str) -> Iterator[None]:
    """Load another revision of the model."""
    for backend in topology.backends_of(part):
        backend.change_revision()
    topology.oracle.learn()
    yield


@contextmanager
def _full(topology: Processes, part: str) -> Iterator[None]:
    """Fill the memory of a Redis that evicts nothing."""
    redis = topology.server(part)
    redis.configure("maxmemory-policy", "noeviction")
    redis.configure("maxmemory", "1")
    yield
    redis.configure("maxmemory", "0")


@contextmanager
def _redis_latency(topology: Processes, part: str) -> Iterator[None]:
    """Delay every reply of a Redis."""
    topology.delays[part] = _LATE
    yield
    topology.delays[part] = 0.0


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


def hits_are_answered(case: Case) -> Iterator[str]:
    """Find memory hits that were refused with no backend up, and refusals without `Retry-After`."""
    down = [each for each in case.sent if case.begun <= each.due < case.ended]
    missed = sum(each.has_failed for each in down if each.is_repeat)
    # The probes take a moment to notice that no backend is up.
    refused = [each for each in down if each.due > case.begun + 1.0 and each.status == 503]
    silent = sum(not each.retry_after for each in refused)
    after = [each.due - case.ended for each in case.sent if each.has_failed]
    case.figures.update(
        refused=len(refused),
        slowest_refusal=round(percentile(refused, 1.0), 3),
        refused_after=round(max([0.0, *after]), 1),
    )
    if missed:
        yield f"{missed} memory hits were refused"
    if silent:
        yield f"{silent} refusals have no `Retry-After`"


def shares(case: Case) -> Sequence[str]:
    """Record how many items each backend answered."""
    grown = _growth(case).items()
    case.figures["items"] = {name[6:]: int(n) for name, n in grown if name.startswith("items ")}
    return ()


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


def explained(case: Case) -> Iterator[str]:
    """Record what was killed, and find wrong or missing answers that no kill explains."""
    answered = [each for each in case.sent if each.status == 200]
    case.figures.update(
        killed=dict(case.topology.notes["killed"]),
        keys=len({each.retry_key for each in answered}),
        answers=len(answered),
        statuses=dict(Counter(each.status for each in case.sent)),
    )
    if other := {each.status for each in case.sent} - _EXPLAINED:
        yield f"requests were answered {sorted(other)}"


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


def _load(rate: float, *, spike: float = 1.0) -> LoadSpec:
    """Return a load of `rate` times the capacity of one backend. It repeats no request."""
    return LoadSpec(rate=rate * CAPACITY, repeated=0.0, hasty=0.0, spike=spike)


def _in_eu(name: str, *, slower: float = 1.0, overflow: bool = False) -> BackendSpec:
    return BackendSpec(name=name, region="eu", slower=slower, overflow=overflow)


def _all_down(name: str, what: str, *, insists: bool, after_end: float) -> Fault:
    return Fault(
        name=name,
        what=what,
        undo="one backend comes back, and the other one 4 s later",
        act=_refuse_all,
        parts=("backends",),
        hold=4.0,
        windows={"backends": Window(is_open=True, after_end=after_end)},
        load=LoadSpec(rate=0.6 * CAPACITY, hasty=0.0, insists=insists),
        # Each worker has a memory cache of its own.
        setup=Setup(backends=TWO_BY_TWO[::2], workers=1),
        checks=(hits_are_answered,),
    )


def _stalls(name: str, hedge_share: float) -> Fault:
    routing = {"hedge_share": hedge_share, "spill_after": 1.0}
    return Fault(
        name=name,
        what=f"delays 5 % of the calls of one of two backends by 1 s; hedge_share is {hedge_share}",
        undo="no call is delayed",
        act=_proxied(stalls=0.05, stall=1.0),
        parts=("backend eu-0",),
        load=_load(0.6),
        setup=Setup(backends=TWO_BY_TWO[:2], document={"routing": routing}),
        checks=(few_attempts,),
    )


_usual = partial(Fault, parts=_BACKENDS, load=_REGIONAL, checks=_CHECKS)

FAULTS = (
    _usual("kill", "ends all processes of a part with SIGKILL",
           "its supervisor, or the runner, starts it again", kill,
           parts=(*_OWN, *_BACKENDS, *_REDIS), hold=10.0,
           windows={"worker": Window(after_begin=3.0),
                    "gateway": Window(is_open=True, after_end=3.0)}),
    _usual("stop", "stops a part with SIGSTOP: it keeps connections, and is silent", "SIGCONT",
           stop, parts=(*_BACKENDS, *_REDIS)),
    _usual("latency", "adds 2 s to every answer of a backend", "answers come at once",
           _proxied(latency=2.0)),
    _usual("errors", "answers 30 % of a backend's calls with 500", "calls get through",
           _proxied(errors=0.3)),
    _usual("refused", "refuses connections to a backend", "the backend listens again",
           _proxied(refuses=True)),
    _usual("half-open", "lets nothing through that is sent to a backend", "silence is cut",
           _proxied(silent=True)),
    _usual("revision", "loads another revision of the model on a part", "it stays",
           _revision),
    _all_down("all-down", "refuses connections to all backends", insists=False, after_end=1.0),
    _all_down("all-down-insistent",
              "refuses connections to all backends, while callers repeat what is refused",
              insists=True, after_end=5.0),
    Fault("unequal",
          "offers 90 % of the capacity of two backends, of which one is three times as fast",
          "nothing to undo", parts=("backends",), load=_load(1.2), checks=(shares,),
          setup=Setup(backends=(_in_eu("fast"), _in_eu("slow", slower=3.0)))),
    _stalls("stalls", 0.0),
    _stalls("stalls-hedged", 0.05),
    Fault("spike", "sends ten times the load; two backends of an overflow pool may help",
          "the load is as before", parts=("callers",), hold=6.0, load=_load(0.2, spike=10.0),
          setup=Setup(backends=(_in_eu("eu-0"), _in_eu("spare-0", overflow=True),
                                _in_eu("spare-1", overflow=True))),
          checks=(shares,)),
    # A cache that refuses writes still answers reads.
    Fault("full", "leaves no memory to a Redis that evicts nothing, so that it refuses writes",
          "it has memory again", _full, _REDIS, load=_HITS,
          checks=(misses_go_on(*_REDIS), breaker_opens("state"))),
    # The limit is what the state Redis says, however late it answers.
    Fault("redis-latency", "delays every reply of a Redis by 200 ms", "replies come at once",
          _redis_latency, _REDIS, load=_HITS,
          setup=Setup(redis={"cache": "delayed", "state": "delayed"}),
          checks=(misses_go_on(*_REDIS), breaker_opens("cache"))),
    Fault("failover",
          "kills the primary of a Redis under three Sentinels, while tenants exceed their limit",
          "the killed server comes back as a replica", _failover, _REDIS, hold=SETTLED,
          load=LoadSpec(rate=150.0, repeated=0.6, hasty=0.0),
          setup=Setup(redis={"cache": "sentinel", "state": "sentinel"}, tenants=WITH_A_LIMIT),
          checks=(limits_hold, misses_go_on("cache"), breaker_opens("cache"))),
    Fault("retries",
          "kills a worker or a Redis every second, while requests with idempotency keys repeat",
          "supervisor and runner start each again at once", _kill_at_random,
          ("workers and Redis",), hold=60.0,
          windows={"workers": Window(is_open=True, after_end=10.0)},
          load=LoadSpec(rate=10.0, repeated=0.0, keyed=True),
          setup=Setup(document={"idempotency": {"lease": 1.0}}), checks=(explained,)),
    Fault("power-cut", "kills the gateway, and takes from its disk what was not written",
          "the gateway starts on what is left", _power_cut,
          ("gateway", "gateway-without-redis"), hold=1.0,
          windows={"gateway": Window(is_open=True, after_end=3.0)},
          load=LoadSpec(rate=100.0, repeated=0.7, hasty=0.0),
          setup=Setup(workers=1, disk_bytes=192 << 20), may_lose=_MAY_LOSE,
          checks=(loss_is_bounded,)),
)  # fmt: skip
