"""Runs four gateways over PostgreSQL with a standby and a state Redis under Sentinels."""

import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import msgspec

from gateway.auth.keys import hash_key
from gateway.ledger.ledger import Ledger
from gateway.settings import Settings, environment, process_environment
from gateway.types import Rule
from loadtests.gateway import Gateway
from testing.postgresql_pair import PostgreSQLPair
from testing.redis_deployments import SentinelDeployment, sentinel_deployment
from testing.stub_process import stub_process
from testing.valkey import Valkey

GATEWAYS = 4
OPERATED = 2
"""Gateways that have an operators' listener; as many pairs of billing and request log run."""
ADMIN_KEY = "admin-key-of-the-fleet"
SHARE = 0.1
STATE_TIMEOUT = 1.0
DOWN_AFTER = 1.5
"""Seconds without a reply after which a Sentinel takes the primary for down."""
RULES = tuple(
    Rule(name="minute", unit="requests", capacity=capacity, window=6.0)
    for capacity in (50, 100, 200)
)
"""The limit of each tenant; one more has none."""
# What is confirmed survives a crash, and a primary without replicas takes no writes.
_DURABLE = ("--appendonly", "yes", "--min-replicas-to-write", "1")


def key_of(tenant: int) -> str:
    """Return the key of a tenant by its number."""
    return f"sk-fleet-tenant-{tenant:02}"


class Fleet:
    """Holds all processes while entered, of which Redis and PostgreSQL fail over."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stub = stack.enter_context(stub_process())
            cache = stack.enter_context(Valkey())
            self.state: SentinelDeployment = stack.enter_context(
                sentinel_deployment(*_DURABLE, replicas=2, sentinels=3, down_after=DOWN_AFTER)
            )
            self.ledger = stack.enter_context(PostgreSQLPair())
            _create_tenants(self.ledger.url)
            backends = [{"id": "stub", "url": stub.url}]
            document = {
                "regions": [{"name": "eu", "pools": [{"backends": backends}]}],
                "limits": {"local_share": SHARE},
            }
            self.gateways: Sequence[Gateway] = [
                Gateway(
                    self._folder / f"gateway-{number}",
                    document,
                    workers=1,
                    admin=number < OPERATED,
                    admin_key=ADMIN_KEY if number < OPERATED else "",
                    cache_url=cache.url,
                    state_url=self.state.url,
                    state_timeout=STATE_TIMEOUT,
                    ledger_url=self.ledger.url,
                    secret="shared-by-the-fleet",  # noqa: S106 - of this run
                    batches=False,
                    shutdown_delay=0.0,
                )
                for number in range(GATEWAYS)
            ]
            for gateway in self.gateways:
                stack.enter_context(gateway)
            for number, gateway in enumerate(self.gateways[:OPERATED]):
                _run_consumers(stack, gateway.settings, name=f"consumer-{number}")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()


def _create_tenants(url: str) -> None:
    with Ledger.create(url) as ledger:
        for number in range(len(RULES) + 1):
            rules = RULES[number : number + 1]
            ledger.accounts.create_tenant(f"tenant-{number}", rules=rules)
            ledger.accounts.create_key(f"tenant-{number}", key_hash=hash_key(key_of(number)))


def _run_consumers(stack: ExitStack, settings: Settings, *, name: str) -> None:
    """Run billing and a request log, which read as `name`."""
    own = msgspec.structs.replace(settings, worker=name)
    environ = dict(process_environment()) | environment(own)
    for entry in ("run-billing", "run-request-log"):
        with (settings.data_dir.parent / f"{entry}.log").open("wb") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "gateway", entry], env=environ, stdout=log, stderr=log
            )
        stack.callback(child.wait)
        stack.callback(child.terminate)
