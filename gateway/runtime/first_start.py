"""Creates the ledger, the database of accounts and usage, of a new deployment.

It never replaces a ledger that was lost.
"""

import asyncio
import time
from contextlib import aclosing
from typing import Final

from sluicegate.gateway.errors import ConfigurationError, DependencyUnavailable
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.ledger.migrations import LedgerEmpty
from sluicegate.gateway.redis.client import connect
from sluicegate.gateway.runtime.control import CONTROL_KEYS, Control
from sluicegate.gateway.settings import Settings

PATIENCE: Final = 60.0
"""Seconds to wait until the database and the state Redis have started."""
_RETRY: Final = 0.25
_TIMEOUT: Final = 2.0
_KNOWN: Final = (
    "the ledger is empty, but the state Redis has served this deployment: restore the ledger from a"
    " backup. `sluicegate ledger init --anew` creates a new one instead, without the keys, prices"
    " and usage of the lost one"
)


def create_ledger(settings: Settings, *, anew: bool = False, patience: float = PATIENCE) -> bool:
    """Create the ledger if there is none, and return whether it was created.

    Blocks the thread. An existing ledger is migrated. If there is no ledger, but Redis has data of
    this deployment, an earlier ledger was lost. No new ledger is then created, unless `anew` is
    true.

    Raises:
        ConfigurationError: there is no ledger, but Redis has data of this deployment.
        DependencyUnavailable: the database or Redis was not reached in time.
    """
    until = time.monotonic() + patience
    while True:
        try:
            return _create(settings, anew=anew)
        except DependencyUnavailable:
            if time.monotonic() >= until:
                raise
        time.sleep(_RETRY)


def _create(settings: Settings, *, anew: bool) -> bool:
    with Ledger(settings.ledger) as ledger:
        try:
            ledger.check()
        except LedgerEmpty:
            pass
        else:
            return False
    if not anew:
        asyncio.run(_check_unknown(settings))
    Ledger.create(settings.ledger).close()
    return True


async def _check_unknown(settings: Settings) -> None:
    """Raise an error if the state Redis has a published document or a changed account.

    Raises:
        ConfigurationError: the state Redis has a document or a changed account.
        DependencyUnavailable: the state Redis cannot be reached.
    """
    keepalive = settings.tcp_keepalive
    redis = connect(settings.state_url, key=CONTROL_KEYS, timeout=_TIMEOUT, keepalive=keepalive)
    async with aclosing(redis):
        versions = await Control(redis).versions()
    if versions.accounts or versions.config:
        raise ConfigurationError(_KNOWN)
