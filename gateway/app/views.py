"""Implements what the API's handlers need for usage, key rotation and readiness."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import Final

import msgspec

from sluicegate.gateway.api.health import Readiness
from sluicegate.gateway.api.key_rotation import RotatedKey
from sluicegate.gateway.api.metadata import UsageLine
from sluicegate.gateway.app.principals import PrincipalsFollower
from sluicegate.gateway.app.stores import Stores
from sluicegate.gateway.auth.keys import digest_of_key, hash_key, new_key
from sluicegate.gateway.errors import DependencyUnavailable
from sluicegate.gateway.http.draining import DRAINING, Draining
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.ledger.types import BudgetReport, GroupBy, GroupUsage, PastRequest
from sluicegate.gateway.routing.fleet import Fleet
from sluicegate.gateway.runtime.control import Control
from sluicegate.gateway.runtime.control_values import Topic
from sluicegate.gateway.runtime.store import RuntimeStore
from sluicegate.gateway.types import Principal

_QUERIES: Final = 4
_WORKERS_TIMEOUT: Final = 2.0
UNREACHABLE: Final = "%s: cannot be reached"
NO_REDIS: Final[Mapping[str, Callable[[], bool]]] = MappingProxyType({})


class LedgerUsage:
    """Reads usage, budgets and recorded requests from the ledger.

    Queries run in a separate thread pool, so that a ledger that does not respond blocks no other
    work.
    """

    def __init__(self, ledger: Ledger, runtimes: RuntimeStore) -> None:
        self._ledger = ledger
        self._runtimes = runtimes
        self._threads = ThreadPoolExecutor(_QUERIES, thread_name_prefix="usage")

    async def report(
        self, caller: Principal, since: datetime, until: datetime, group_by: Sequence[str]
    ) -> list[UsageLine]:
        """Return the usage of the caller's tenant, for the models that the caller's key may use."""
        groups = [GroupBy(name) for name in group_by]
        ask = partial(
            self._ledger.usage,
            caller.tenant,
            since,
            until,
            groups,
            prices=self._runtimes.current.document.prices,
            models=caller.models,
        )
        rows = await asyncio.get_running_loop().run_in_executor(self._threads, ask)
        return [_line(row, groups) for row in rows]

    async def budget(self, caller: Principal) -> BudgetReport | None:
        """Return the budget of the caller's tenant, or `None` if the key may not use all models."""
        if caller.models is not None:
            return None
        prices = self._runtimes.current.document.prices
        ask = partial(self._ledger.budgets.status, caller.tenant, prices)
        return await asyncio.get_running_loop().run_in_executor(self._threads, ask)

    async def find(self, caller: Principal, request_id: str) -> PastRequest | None:
        """Return a recorded request of the caller's tenant.

        Return `None` if there is no such request, or if the key may not use the request's model.
        """
        ask = partial(self._ledger.request, caller.tenant, request_id, models=caller.models)
        return await asyncio.get_running_loop().run_in_executor(self._threads, ask)

    async def find_all(self, caller: Principal, client_id: str) -> list[PastRequest]:
        """Return the recorded requests with this `client_id`; see `find`."""
        ask = partial(self._ledger.requests, caller.tenant, client_id, models=caller.models)
        return await asyncio.get_running_loop().run_in_executor(self._threads, ask)


class OwnKeys:
    """Rotates keys in the ledger, in a separate thread pool, and notifies the workers."""

    def __init__(self, stores: Stores) -> None:
        self._threads = ThreadPoolExecutor(_QUERIES, thread_name_prefix="keys")
        self._accounts = stores.ledger.accounts
        self._control = Control(stores.state)

    async def rotate(self, caller: Principal, *, former: bytes, keep: float) -> RotatedKey:
        """Give the caller's key a new secret.

        The secret `former`, which the caller has sent, stays valid for at most `keep` seconds.
        Workers that miss the notification find the change when they next poll the ledger.
        """
        secret = new_key()
        change = partial(
            self._accounts.rotate,
            caller.key,
            key_hash=hash_key(secret),
            former_hash=digest_of_key(former).hex(),
            keep=keep,
            actor=f"key {caller.key}",
        )
        key = await asyncio.get_running_loop().run_in_executor(self._threads, change)
        with contextlib.suppress(DependencyUnavailable):
            version = await self._control.touch(Topic.ACCOUNTS)
            await self._control.wait_for_workers(Topic.ACCOUNTS, version, within=_WORKERS_TIMEOUT)
        return RotatedKey(id=key.id, key=secret, former_expires=key.former_expires or key.created)


class WorkerReadiness:
    """Finds out whether a worker is ready: it has API keys and a backend, and can store events.

    API keys stay valid once they are loaded. If the ledger is empty or cannot be reached, a worker
    with loaded keys is degraded but still ready. A worker that drains is not ready.

    `refusal_reason` returns why events cannot be stored, or an empty string if they can be stored.
    `redis` maps the name of each Redis to a function that returns whether it can be reached. A
    worker that reaches no Redis is degraded but still ready.
    """

    def __init__(
        self,
        *,
        principals: PrincipalsFollower,
        fleet: Fleet,
        draining: Draining,
        refusal_reason: Callable[[], str],
        redis: Mapping[str, Callable[[], bool]] = NO_REDIS,
    ) -> None:
        self._principals = principals
        self._fleet = fleet
        self._draining = draining
        self._refusal_reason = refusal_reason
        self._redis = redis

    def readiness(self) -> Readiness:
        """Return what is missing or degraded.

        The result does not name backends, because the readiness route is public.
        """
        statistics = self._fleet.statistics()
        missing = [DRAINING] if self._draining.is_announced else []
        if not self._principals.is_loaded:
            reason = self._principals.emptiness or "the ledger was never reached"
            missing.append(f"keys: {reason}")
        ready = [one for one in statistics if one.health == "ready"]
        if not ready:
            missing.append("backends: none is ready")
        if trouble := self._refusal_reason():
            missing.append(f"event log: {trouble}")
        degraded = [UNREACHABLE % role for role, reached in self._redis.items() if not reached()]
        if not self._principals.is_reached:
            degraded.append(self._principals.emptiness or UNREACHABLE % "ledger")
        if len(ready) < len(statistics):
            degraded.append("backends: some are not ready")
        if any(one.missing for one in ready):
            degraded.append("backends: some lack models, or revisions of them")
        return Readiness(ready=not missing, missing=missing, degraded=degraded)


def _line(row: GroupUsage, groups: Sequence[GroupBy]) -> UsageLine:
    values = msgspec.structs.asdict(row)
    group = {group.value: values[group.value] for group in groups}
    return msgspec.convert(values | {"group": group}, UsageLine)
