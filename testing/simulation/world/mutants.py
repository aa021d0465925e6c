"""Lists safeguards of the product. Each can be removed, to see whether the simulation notices.

A safeguard is removed in a process by replacing a function or a constant of the product.
"""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, NamedTuple

import msgspec
from redis.asyncio.connection import AbstractConnection
from typing_extensions import override

from sluicegate.backends.batching import runner
from sluicegate.backends.batching.admission import Admission
from sluicegate.backends.batching.submission import QueueLimits
from sluicegate.backends.errors import RevisionMismatch
from sluicegate.backends.serving import recovery, reloading
from sluicegate.backends.serving.core import ServingCore
from sluicegate.backends.serving.recovery import load_repository
from sluicegate.backends.types import FloatArray, JoinedWidth, OutputKind
from sluicegate.gateway.api import idempotent_requests
from sluicegate.gateway.api.request_state import RequestIds
from sluicegate.gateway.app.principals import PrincipalsFollower
from sluicegate.gateway.cache.key import KeyMaker, KeyParts
from sluicegate.gateway.dialects.guards.route import GuardedTexts, GuardResult
from sluicegate.gateway.errors import EventLogUnavailable
from sluicegate.gateway.events import segment
from sluicegate.gateway.events.log import EventLog
from sluicegate.gateway.events.reader import LogReader
from sluicegate.gateway.events.syncing import LogSync
from sluicegate.gateway.http.draining import Stop
from sluicegate.gateway.inference.claiming import ClaimingRunner
from sluicegate.gateway.ledger.pricing import PriceList
from sluicegate.gateway.ledger.recording import _RecordedRanges
from sluicegate.gateway.rate_limit.lease import Lease
from sluicegate.gateway.rate_limit.memory import MemoryRateLimiter
from sluicegate.gateway.redis import client
from sluicegate.gateway.regional_limits import limits
from sluicegate.gateway.runtime import control
from sluicegate.gateway.runtime.follower import RuntimeFollower
from sluicegate.gateway.runtime.recovery import LedgerRecovery
from sluicegate.gateway.types import ItemOutcome, RequestId
from sluicegate.gateway.workers import stream
from sluicegate.gateway.workers.billing import Billing
from sluicegate.gateway.workers.group import GroupReader
from sluicegate.gateway.workers.shipper import Shipper
from testing.simulation.world.faults import make_directed
from testing.simulation.world.operators import KINDS as OPERATIONS
from testing.simulation.world.scenario import Scenario, make_requests

Remove = Callable[[], None]


def _replace(holder: Any, name: str, value: Any) -> Remove:
    return lambda: setattr(holder, name, value)


def _key_without(**changes: Any) -> Remove:
    """Leave a part out of the keys of cached results."""
    prefix = KeyMaker.prefix

    def without(self: KeyMaker, parts: KeyParts) -> Any:
        return prefix(self, msgspec.structs.replace(parts, **changes))

    return _replace(KeyMaker, "prefix", without)


def _unrevised() -> Remove:
    prefix = KeyMaker.prefix
    return _replace(KeyMaker, "prefix", lambda self, parts: prefix(self, parts.unrevised()))


async def _nothing(*_: Any, **__: Any) -> None:
    return None


async def _no_epochs(follower: Any) -> tuple[dict[str, int], str]:
    return {}, await follower._control.purge_history()  # noqa: SLF001


async def _no_entries(*_: Any) -> list[Any]:
    return []


def _read_once(read: Any) -> Any:
    async def read_once(self: PrincipalsFollower) -> None:
        if not self.is_loaded:
            await read(self)

    return read_once


def _latest_price(at: Any) -> Any:
    return lambda self, model, _: at(self, model, 1 << 62)


def _no_former_revision() -> None:
    def load_anew(*args: Any, **options: Any) -> Any:
        return load_repository(*args, **options | {"before": None})

    _replace(reloading, "load_repository", load_anew)()
    _replace(recovery, "_Search", _NoSearch)()


class _NoSearch(recovery._Search):  # noqa: SLF001
    @override
    def pin(self, catalogue: Any, model_set: Any) -> bool:
        return False


def _only_shares(rule: Any) -> Any:
    def only_share(self: Any, bucket: str, full: Any) -> Any:
        found = rule(self, bucket, full)
        share = self._shares.get(bucket, self._rest)
        if full.period or share.used:
            return found
        return msgspec.structs.replace(found, capacity=0, unknown_level=0)

    return only_share


def _ship_without_comparison() -> None:
    """Remove two safeguards, each of which also does the other's work."""
    script = stream._SHIP.replace("shipped ~= ARGV[3]", "false")  # noqa: SLF001
    _replace(stream, "_SHIP", script)()
    _replace(Shipper, "_compare", lambda *_, **__: None)()


def _split_unchecked(
    output: FloatArray, lengths: list[int], kind: OutputKind, joined: JoinedWidth
) -> list[FloatArray]:
    rows = [joined.real(output[place], kind, length) for place, length in enumerate(lengths)]
    return [row.copy() for row in rows]


def _allow_unread() -> None:
    judge = GuardedTexts._result  # noqa: SLF001

    def allow(self: GuardedTexts, text: str, outcome: ItemOutcome, names: Any) -> GuardResult:
        if outcome.failure is not None:
            return GuardResult(verdict="allow", findings=[])
        return judge(self, text, outcome, names)

    _replace(GuardedTexts, "_result", allow)()


@asynccontextmanager
async def _changes_without_pause(self: control.Control) -> AsyncIterator[Any]:
    async with self._redis.pubsub(ignore_subscribe_messages=True) as pubsub:
        await self._execute(pubsub.subscribe(control._CHANGED))  # noqa: SLF001

        async def receive() -> bool:
            message = await self._execute(pubsub.get_message(timeout=control._LISTEN))  # noqa: SLF001
            return message is not None

        yield receive


def _loss_as_silence() -> None:
    """Take a connection that was lost for one without replies, and ask again at once."""
    lossy = client._LossDetectingConnection  # noqa: SLF001
    for name in ("can_read", "read_response"):
        _replace(lossy, name, getattr(AbstractConnection, name))()
    _replace(control.Control, "changes", _changes_without_pause)()


def _without_room(publish: Any) -> Any:
    def publish_if_possible(self: EventLog, event: Any) -> None:
        with suppress(EventLogUnavailable):
            publish(self, event)

    return publish_if_possible


def _full_for_good() -> None:
    """Never look again whether there is room for events."""
    make_room = EventLog._make_room  # noqa: SLF001

    def make_room_once(self: EventLog, size: int) -> int:
        if self._reason:
            raise self._refusal(self._reason)
        return make_room(self, size)

    _replace(EventLog, "_make_room", make_room_once)()
    _replace(EventLog, "refusal_reason", lambda self: self._reason)()


def _create_once(create: Callable[[GroupReader], Awaitable[None]]) -> Any:
    """Create the consumer group when a process begins, and not again."""
    created = set[int]()

    async def create_once(self: GroupReader) -> None:
        if id(self) not in created:
            created.add(id(self))
            await create(self)

    return create_once


def _same_ids(self: RequestIds) -> None:
    self.prefix, self._next = f"req_{0:016x}", 0


def _acknowledge_first() -> None:
    """Acknowledge usage before it is committed, and do not look for what is then missing."""
    bill = Billing._bill  # noqa: SLF001

    async def bill_later(self: Billing, entries: Any) -> None:
        await self._group.acknowledge(entries)
        await bill(self, entries)

    _replace(Billing, "_bill", bill_later)()
    _replace(Shipper, "_compare", lambda *_, **__: None)()


def _any_revision(find: Any) -> Any:
    def find_any(self: ServingCore, variant: Any) -> Any:
        try:
            return find(self, variant)
        except RevisionMismatch:
            entry = self.model_set.find(variant[0])
            assert entry is not None
            return entry, entry.encoders()

    return find_any


def _set_whole(self: MemoryRateLimiter, _: float) -> None:
    self._fraction = 1.0


class Mutant(NamedTuple):
    """A safeguard that can be removed, and how to make it likely that it is needed.

    `plan` has faults and operations, see `make_directed`. `load` are options of `make_requests`.
    """

    remove: Remove
    plan: tuple[str, ...] = ()
    load: Mapping[str, Any] = {}

    def scenario(self, seed: int) -> Scenario:
        """Return a scenario of a seed in which the safeguard is likely to be needed."""
        steps = make_directed(seed, self.plan)
        return Scenario(
            seed=seed,
            requests=make_requests(seed, **self.load),
            operations=tuple(each for each in steps if each.kind in OPERATIONS),
            faults=tuple(each for each in steps if each.kind not in OPERATIONS),
        )


MUTANTS: Final[Mapping[str, Mutant]] = {
    "the tenant in cache keys": Mutant(_key_without(scope="shared"), load={"phrases": 1}),
    "the revision in cache keys": Mutant(_unrevised(), ("swap",)),
    "the parameters in cache keys": Mutant(_key_without(parameters=b"")),
    "the sync of usage events": Mutant(
        _replace(LogSync, "run_once", lambda *_, **__: None),
        ("pause gateway/shipper", "crash gateway"),
    ),
    "the checksum of usage events": Mutant(
        _replace(segment, "checksum", lambda *_: 0), ("pause gateway/shipper", "crash gateway")
    ),
    "the record of sequence numbers in the ledger": Mutant(
        _replace(_RecordedRanges, "holds", lambda *_: False),
        ("kill-call gateway/billing", "kill-call gateway/billing", "kill-call gateway/billing"),
        {"repeated": 1.0, "phrases": 1, "keyed": 0.0, "mostly": "acme"},
    ),
    "the comparison of logs, stream and ledger": Mutant(
        _ship_without_comparison, ("pause gateway/billing", "lose redis", "empty redis")
    ),
    "the claim of a dead consumer's entries": Mutant(
        _replace(GroupReader, "_claim", _no_entries),
        ("pause gateway/billing for 6", "crash gateway for 1 after 4"),
    ),
    "the id of an idempotency key": Mutant(
        _replace(
            idempotent_requests, "id_of", lambda *_: RequestId(f"req_{secrets.token_hex(13)}")
        ),
        tuple(
            f"kill-request gateway/worker-0 by {calls} for 1.5 after 2" for calls in (3, 4, 5, 6)
        ),
        {"keyed": 1.0, "mostly": "acme", "repeated": 0.0},
    ),
    "the shares of regions": Mutant(
        _replace(limits.DividedLimits, "rule", lambda _, __, rule: rule),
        load={"mostly": "limited"},
    ),
    "the recovery of the configuration": Mutant(
        _replace(LedgerRecovery, "reconcile", _nothing),
        ("drain", "empty redis"),
    ),
    "the changes of keys": Mutant(
        _replace(PrincipalsFollower, "read_again", _read_once(PrincipalsFollower.read_again)),
        ("rotate",),
    ),
    "the epochs of purges": Mutant(
        _replace(RuntimeFollower, "_epochs", _no_epochs), ("purge 5",), {"mostly": "acme"}
    ),
    "the new history after a lost purge": Mutant(
        _replace(control.Control, "start_purge_history", _nothing),
        ("purge 5", "lose redis for 0.3 after 0.3"),
        {"mostly": "acme", "repeated": 1.0, "keyed": 0.0},
    ),
    "the changes of the configuration": Mutant(
        _replace(RuntimeFollower, "_take_config", _nothing), ("reload",)
    ),
    "the price at the time of a request": Mutant(
        _replace(PriceList, "at", _latest_price(PriceList.at))
    ),
    "the refusal of answers without an event": Mutant(
        _replace(EventLog, "publish", _without_room(EventLog.publish)),
        ("full gateway for 6", "kill gateway/worker-0 after 0.5"),
    ),
    "the acknowledgement after the commit": Mutant(
        _acknowledge_first,
        tuple(f"kill-call gateway/billing by {n} for 3 after 2" for n in (2, 3, 4)),
    ),
    "the revision that a call names": Mutant(
        _replace(ServingCore, "_find", _any_revision(ServingCore._find)),  # noqa: SLF001
        ("pause gateway/worker-0 for 3", "swap after 0.2", "kill backend/backend-0 after 0.5"),
    ),
    "the end of a full disk": Mutant(
        _full_for_good, ("full gateway for 3", "kill gateway/worker-0 after 0.5")
    ),
    # Writing to a log that the shipper has truncated ends the process with SIGBUS.
    "the lock of an event log": Mutant(_replace(LogReader, "_writer_gone", lambda _: True)),
    "the random part of ids": Mutant(_replace(RequestIds, "__init__", _same_ids)),
    "the local share of a limit": Mutant(
        _replace(MemoryRateLimiter, "fraction", property(lambda _: 1.0, _set_whole)),
        ("cut eu-gateway eu-redis for 6",),
        {"mostly": "limited", "count": 400, "repeated": 1.0, "keyed": 0.0},
    ),
    "the local share of a region without a share": Mutant(
        _replace(limits.DividedLimits, "rule", _only_shares(limits.DividedLimits.rule)),
        ("ledger gateway by 0.05 for 10", "ledger gateway by 0.05 for 0.3 after 12"),
    ),
    "the consumer group after a loss": Mutant(
        _replace(GroupReader, "_create", _create_once(GroupReader._create)),  # noqa: SLF001
        ("empty redis",),
    ),
    # What follows mends defects that were found on real systems: a partition from the state Redis
    # stopped a worker for good, workers billed an item twice, leases outlived a lowered limit, a
    # broken revision took the place of the healthy one, and requests of many items waited in vain.
    "the loss of a connection to Redis": Mutant(_loss_as_silence, ("cut gateway redis for 15",)),
    "the claims of items across workers": Mutant(
        _replace(ClaimingRunner, "start", lambda self, items: self._runner.start(items)),
        load={"twins": 1.0, "keyed": 0.0},
    ),
    "the rule of a lease": Mutant(
        _replace(Lease, "is_under", lambda *_: True),
        (
            "limit 2000",
            "slow eu-gateway eu-redis for 6 by 0.8 after 1",
            "limit 5 after 3",
        ),
        {"mostly": "limited", "count": 400, "repeated": 1.0, "keyed": 0.0},
    ),
    "the former revision of a broken model": Mutant(_no_former_revision, ("break",)),
    "the check of a model's numbers": Mutant(
        _replace(runner, "split_output", _split_unchecked), ("model-nan backend",) * 3
    ),
    "the check of an output's shape": Mutant(
        _replace(runner, "check_shape", lambda *_: None), ("model-shape backend",) * 3
    ),
    "the verdict on texts that were not read": Mutant(
        _allow_unread, ("model-slow backend",) * 3, {"guarded": 1.0, "repeated": 0.0}
    ),
    "the bound of a backend's queue": Mutant(
        _replace(QueueLimits, "admit", lambda *_, **__: True),
        ("model-slow backend",) * 3,
        {"count": 400, "repeated": 0.0, "mostly": "acme"},
    ),
    "the announcement of a stop": Mutant(
        _replace(Stop, "is_graceful", False), ("stop gateway/worker-0",) * 3
    ),
    "the refusal of work that would be late": Mutant(
        _replace(Admission, "check", lambda *_, **__: None),
        ("model-slow eu-backend for 9", "model-slow us-backend for 9 after 0"),
        {"large": 60},
    ),
}
