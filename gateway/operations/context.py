"""Defines what an operation acts on, and on whose behalf."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import msgspec

from sluicegate.gateway.errors import DependencyUnavailable
from sluicegate.gateway.operations.operators import Operator
from sluicegate.gateway.runtime.control_values import Topic

if TYPE_CHECKING:  # commands import operations for their declarations, and need none of these
    from sluicegate.gateway.ledger.ledger import Ledger
    from sluicegate.gateway.operations.active_document import ActiveDocumentReader
    from sluicegate.gateway.operations.backend_calls import BackendCalls
    from sluicegate.gateway.operations.model_names import ModelNameValidator
    from sluicegate.gateway.operations.operator_keys import OperatorKeys
    from sluicegate.gateway.operations.publishing import Publisher
    from sluicegate.gateway.redis.connect import PipelinedClient
    from sluicegate.gateway.runtime.control import Control
    from sluicegate.gateway.runtime.recovery import Recovery
    from sluicegate.gateway.settings import Settings

T = TypeVar("T")
_WORKERS_TIMEOUT = 2.0


class OperationContext(msgspec.Struct, frozen=True, kw_only=True):
    """The operator who carries out an operation, and the objects that operations use."""

    operator: Operator
    request_id: str
    settings: "Settings"
    control: "Control"
    ledger: "Ledger"
    cache_redis: "PipelinedClient"
    publisher: "Publisher"
    recovery: "Recovery"
    operator_keys: "OperatorKeys"
    active: "ActiveDocumentReader"
    backends: "BackendCalls"
    model_names: "ModelNameValidator"

    async def change_accounts(self, change: Callable[[], T]) -> T:
        """Run a change of tenants or keys in a thread, and wait for all workers to apply it.

        It waits at most two seconds. A worker that misses the notification of a change finds the
        change when it next polls the ledger.
        """
        made = await asyncio.to_thread(change)
        with contextlib.suppress(DependencyUnavailable):
            version = await self.control.touch(Topic.ACCOUNTS)
            await self.control.wait_for_workers(Topic.ACCOUNTS, version, within=_WORKERS_TIMEOUT)
        return made

    async def audit(self, action: str, subject: str) -> None:
        """Write an audit entry. Call this before a change outside of the ledger is made.

        So there is no change without an entry.
        """
        await asyncio.to_thread(self.ledger.audit, self.operator.name, action, subject)
