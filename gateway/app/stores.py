"""Opens the stores that a worker shares with other processes."""

from contextlib import AsyncExitStack
from typing import NamedTuple

from redis.asyncio import Redis

from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.redis.client import connect
from sluicegate.gateway.redis.scripts import ScriptClient, open_scripts
from sluicegate.gateway.runtime.control import CONTROL_KEYS, Control
from sluicegate.gateway.runtime.follower import first_runtime
from sluicegate.gateway.runtime.recovery import LedgerRecovery, Recovery
from sluicegate.gateway.runtime.store import RuntimeStore
from sluicegate.gateway.settings import Settings


class Stores(NamedTuple):
    """Holds a worker's clients for Redis and the ledger, and the current configuration.

    `state` is the Redis with the state that processes share. `limits` runs the scripts for limits
    there. It shares the connections of `state`, unless this Redis is a cluster. `idempotency` runs
    the scripts for idempotency keys. It has its own connections, so that these scripts do not delay
    other requests.
    """

    state: Redis
    limits: ScriptClient
    idempotency: ScriptClient
    ledger: Ledger
    recovery: Recovery
    runtimes: RuntimeStore


async def open_stores(stack: AsyncExitStack, settings: Settings) -> Stores:
    """Open the stores, and read the current configuration. `stack` closes the stores.

    Raises:
        ConfigurationError: the configuration is invalid.
    """
    url, timeout, keepalive = settings.state_url, settings.state_timeout, settings.tcp_keepalive
    state = connect(url, key=CONTROL_KEYS, timeout=timeout, keepalive=keepalive)
    stack.push_async_callback(state.aclose)
    limits = open_scripts(url, state=state, timeout=timeout, keepalive=keepalive)
    stack.push_async_callback(limits.aclose)
    others = connect(url, key=CONTROL_KEYS, timeout=timeout, keepalive=keepalive)
    stack.push_async_callback(others.aclose)
    idempotency = open_scripts(url, state=others, timeout=timeout, keepalive=keepalive)
    stack.push_async_callback(idempotency.aclose)
    ledger = stack.enter_context(Ledger(settings.ledger))
    recovery = LedgerRecovery(
        control=Control(state), record=ledger.published, region=settings.region
    )
    runtimes = RuntimeStore(await first_runtime(state, settings, recovery))
    return Stores(state, limits, idempotency, ledger, recovery, runtimes)
