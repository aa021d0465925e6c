"""Lists safeguards of the product. Each can be removed, to see whether the simulation notices.

A safeguard is removed in a process by replacing a function or a constant of the product.
"""

import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from sluicegate.backends.serving import reloading
from sluicegate.gateway.api import idempotent_requests
from sluicegate.gateway.app.principals import PrincipalsFollower
from sluicegate.gateway.cache.key import KeyMaker, KeyParts
from sluicegate.gateway.events import segment
from sluicegate.gateway.events.syncing import LogSync
from sluicegate.gateway.ledger.pricing import PriceList
from sluicegate.gateway.ledger.recording import _RecordedRanges
from sluicegate.gateway.rate_limit.lease import Lease
from sluicegate.gateway.regional_limits import limits
from sluicegate.gateway.runtime.follower import RuntimeFollower
from sluicegate.gateway.runtime.recovery import LedgerRecovery
from sluicegate.gateway.types import RequestId
from sluicegate.gateway.workers import stream
from sluicegate.gateway.workers.group import GroupReader
from sluicegate.gateway.workers.shipper import Shipper

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


def _forgetful(load: Any) -> Any:
    def load_anew(*args: Any, **options: Any) -> Any:
        return load(*args, **options | {"before": None})

    return load_anew


MUTANTS: Final[Mapping[str, Remove]] = {
    "the tenant in cache keys": _key_without(scope="shared"),
    "the revision in cache keys": _unrevised(),
    "the parameters in cache keys": _key_without(parameters=b""),
    "the sync of usage events": _replace(LogSync, "run_once", lambda *_, **__: None),
    "the checksum of usage events": _replace(segment, "checksum", lambda *_: 0),
    "the record of sequence numbers in the ledger": _replace(
        _RecordedRanges, "holds", lambda *_: False
    ),
    "the position of a log in the stream": _replace(
        stream,
        "_SHIP",
        stream._SHIP.replace("shipped ~= ARGV[3]", "false"),  # noqa: SLF001
    ),
    "the comparison of logs and ledger": _replace(Shipper, "_compare", lambda *_, **__: None),
    "the claim of a dead consumer's entries": _replace(GroupReader, "_claim", _no_entries),
    "the id of an idempotency key": _replace(
        idempotent_requests, "id_of", lambda *_: RequestId(f"req_{secrets.token_hex(13)}")
    ),
    "the rule of a lease": _replace(Lease, "is_under", lambda *_: True),
    "the shares of regions": _replace(limits.DividedLimits, "rule", lambda _, __, rule: rule),
    "the recovery of the configuration": _replace(LedgerRecovery, "reconcile", _nothing),
    "the changes of keys": _replace(
        PrincipalsFollower, "read_again", _read_once(PrincipalsFollower.read_again)
    ),
    "the changes of the configuration": _replace(RuntimeFollower, "_take_config", _nothing),
    "the price at the time of a request": _replace(PriceList, "at", _latest_price(PriceList.at)),
    "the former revision of a broken model": _replace(
        reloading, "load_repository", _forgetful(reloading.load_repository)
    ),
}
