"""Creates the ledger and the demo tenant for `sluicegate up`.

This runs in a separate process. The supervisor itself does not import the SQL library, so that it
starts sooner and takes less memory.
"""

import contextlib

from sluicegate.gateway.auth.keys import hash_key
from sluicegate.gateway.errors import Conflict
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.runtime.first_start import create_ledger
from sluicegate.gateway.settings import Settings
from sluicegate.gateway.supervisor.errors import CannotStart
from sluicegate.gateway.types import Rule

DEMO_TENANT = "demo"
_ACTOR = "sluicegate up"
# The demo tenant's limits. They are enforced, but one machine cannot reach them.
_DEMO_RULES = (
    Rule(name="minute", unit="requests", capacity=10_000_000, window=60.0),
    Rule(name="items", unit="items", capacity=10_000_000, window=60.0),
)


def bootstrap(settings: Settings, demo_key: str) -> None:
    """Create the ledger and a demo tenant with the key `demo_key`, unless they exist.

    Raises:
        CannotStart: the key is revoked, or belongs to another tenant.
        ConfigurationError: the ledger is empty, but Redis has data of this deployment.
    """
    create_ledger(settings)
    with Ledger(settings.ledger) as ledger:
        accounts = ledger.accounts
        with contextlib.suppress(Conflict):  # an earlier start has created it
            accounts.create_tenant(
                DEMO_TENANT, name="Demonstration", rules=_DEMO_RULES, actor=_ACTOR
            )
        key_hash = hash_key(demo_key)
        known = accounts.find_key(key_hash)
        if known is None:
            accounts.create_key(DEMO_TENANT, key_hash=key_hash, name="demo", actor=_ACTOR)
        elif known.revoked is not None or known.tenant != DEMO_TENANT:
            raise CannotStart(
                "the demo key was revoked or belongs to another tenant; choose another with"
                " `--demo-key`"
            )
