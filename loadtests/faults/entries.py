"""Lists every fault of the catalogue."""

from functools import partial

from loadtests.faults import (
    acts,
    alerts,
    batch,
    bulk_jobs,
    changes,
    container_faults,
    fleet,
    namespaces,
    pods,
    power_cut,
    retries,
)
from loadtests.faults.acts import proxied
from loadtests.faults.catalogue import Fault, LoadSpec
from loadtests.faults.checks import (
    breaker_opens,
    few_attempts,
    hits_are_answered,
    limits_hold,
    misses_go_on,
    shares,
)
from loadtests.faults.children import CAPACITY, BackendSpec
from loadtests.faults.judge import SETTLED, Window
from loadtests.faults.processes import TWO_BY_TWO, Setup

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
        act=acts.all_down,
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
        act=proxied(stalls=0.05, stall=1.0),
        parts=("backend eu-0",),
        load=_load(0.6),
        setup=Setup(backends=TWO_BY_TWO[:2], document={"routing": routing}),
        checks=(few_attempts,),
    )


_usual = partial(Fault, parts=_BACKENDS, load=_REGIONAL, checks=_CHECKS)

FAULTS: tuple[Fault, ...] = (
    _usual("kill", "ends all processes of a part with SIGKILL",
           "its supervisor, or the runner, starts it again", acts.kill,
           parts=(*_OWN, *_BACKENDS, *_REDIS), hold=10.0,
           windows={"worker": Window(after_begin=3.0),
                    "gateway": Window(is_open=True, after_end=3.0)}),
    _usual("stop", "stops a part with SIGSTOP: it keeps connections, and is silent", "SIGCONT",
           acts.stop, parts=(*_BACKENDS, *_REDIS)),
    _usual("latency", "adds 2 s to every answer of a backend", "answers come at once",
           proxied(latency=2.0)),
    _usual("errors", "answers 30 % of a backend's calls with 500", "calls get through",
           proxied(errors=0.3)),
    _usual("refused", "refuses connections to a backend", "the backend listens again",
           proxied(refuses=True)),
    _usual("half-open", "lets nothing through that is sent to a backend", "silence is cut",
           proxied(silent=True)),
    _usual("revision", "loads another revision of the model on a part", "it stays",
           acts.revision),
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
          "it has memory again", acts.full, _REDIS, load=_HITS,
          checks=(misses_go_on(*_REDIS), breaker_opens("state"))),
    # The limit is what the state Redis says, however late it answers.
    Fault("redis-latency", "delays every reply of a Redis by 200 ms", "replies come at once",
          acts.redis_latency, _REDIS, load=_HITS, setup=Setup(redis="delayed"),
          checks=(misses_go_on(*_REDIS), breaker_opens("cache"))),
    Fault("failover",
          "kills the primary of a Redis under three Sentinels, while tenants exceed their limit",
          "the killed server comes back as a replica", acts.failover, _REDIS, hold=SETTLED,
          load=LoadSpec(rate=150.0, repeated=0.6, hasty=0.0),
          setup=Setup(redis="sentinel", limited=1),
          checks=(limits_hold, misses_go_on("cache"), breaker_opens("cache"))),
    *retries.FAULTS,
    *power_cut.FAULTS,
    *batch.FAULTS,
    *alerts.FAULTS,
    *bulk_jobs.FAULTS,
    *changes.FAULTS,
    *namespaces.FAULTS,
    *fleet.FAULTS,
    *container_faults.FAULTS,
    *pods.FAULTS,
)  # fmt: skip
"""All faults in the order in which they run. Faults with equal setups share a running system."""
