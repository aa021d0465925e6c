"""Lists safeguards of the product. Each can be removed, to see whether the simulation notices.

A safeguard is removed in a process by replacing a function or a constant of the product.
"""

import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec
from typing_extensions import override

from sluicegate.backends.batching import runner
from sluicegate.backends.batching.submission import QueueLimits
from sluicegate.backends.serving import recovery, reloading
from sluicegate.backends.serving.recovery import load_repository
from sluicegate.backends.types import FloatArray, JoinedWidth, OutputKind
from sluicegate.gateway.api import idempotent_requests
from sluicegate.gateway.app.principals import PrincipalsFollower
from sluicegate.gateway.cache.key import KeyMaker, KeyParts
from sluicegate.gateway.dialects.guards.route import GuardedTexts, GuardResult
from sluicegate.gateway.events import segment
from sluicegate.gateway.events.syncing import LogSync
from sluicegate.gateway.http.draining import Stop
from sluicegate.gateway.ledger.pricing import PriceList
from sluicegate.gateway.ledger.recording import _RecordedRanges
from sluicegate.gateway.rate_limit.lease import Lease
from sluicegate.gateway.regional_limits import limits
from sluicegate.gateway.runtime.follower import RuntimeFollower
from sluicegate.gateway.runtime.recovery import LedgerRecovery
from sluicegate.gateway.types import ItemOutcome, RequestId
from sluicegate.gateway.workers import stream
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
        ("kill-call gateway/billing", "crash gateway"),
    ),
    "the id of an idempotency key": Mutant(
        _replace(
            idempotent_requests, "id_of", lambda *_: RequestId(f"req_{secrets.token_hex(13)}")
        ),
        ("cut-one-way gateway callers", "empty redis"),
        {"keyed": 1.0, "mostly": "acme"},
    ),
    "the rule of a lease": Mutant(
        _replace(Lease, "is_under", lambda *_: True),
        ("limit 500", "slow gateway redis", "limit 5"),
        {"mostly": "limited"},
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
    "the changes of the configuration": Mutant(
        _replace(RuntimeFollower, "_take_config", _nothing), ("reload",)
    ),
    "the price at the time of a request": Mutant(
        _replace(PriceList, "at", _latest_price(PriceList.at))
    ),
    "the former revision of a broken model": Mutant(_no_former_revision, ("break",)),
    "the check of a model's numbers": Mutant(
        _replace(runner, "split_output", _split_unchecked), ("model-nan backend",) * 3
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
}
