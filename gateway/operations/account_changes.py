"""Makes changes to tenants and keys, which every worker applies."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import TypeVar

from gateway.errors import DependencyUnavailable
from gateway.operations.context import OperationContext
from gateway.runtime.control_values import Topic

T = TypeVar("T")
_WORKERS_TIMEOUT = 2.0


async def change_accounts(context: OperationContext, change: Callable[[], T]) -> T:
    """Run `change` in a thread, and wait at most two seconds for all workers to apply it.

    A worker that misses the notification of a change finds the change when it next polls the
    ledger.
    """
    made = await asyncio.to_thread(change)
    with contextlib.suppress(DependencyUnavailable):
        version = await context.control.touch(Topic.ACCOUNTS)
        await context.control.wait_for_workers(Topic.ACCOUNTS, version, within=_WORKERS_TIMEOUT)
    return made
