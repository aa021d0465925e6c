"""Secrets that two processes share are rotated without a refusal, by the steps of the documents."""

from collections.abc import Iterator
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from redis.exceptions import ConnectionError as RedisConnectionError
from sqlalchemy import make_url

from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.redis.client import connect
from sluicegate.gateway.upstream.base import CallFailed
from sluicegate.gateway.upstream.http import HttpBackendClient
from testing.model_repository import write_repository
from testing.postgresql import PostgreSQL
from testing.valkey import Valkey
from tests.support.ledgers import Clock
from tests.support.listening_backend import listening_backend

pytestmark = pytest.mark.anyio
OLD, NEW = "the-old-secret", "the-new-secret"
PATIENCE = 30.0


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return write_repository(tmp_path / "models")


def backend_token_steps() -> Iterator[tuple[str, dict[str, Any]]]:
    """What gateways send, and what backends are told, by docs/operations/rotate-secrets.md."""
    yield OLD, {"token": OLD}
    yield OLD, {"token": NEW, "second_token": OLD}
    yield NEW, {"token": NEW, "second_token": OLD}
    yield NEW, {"token": NEW}


@pytest.mark.parametrize("step", range(3))
async def test_any_gateway_reaches_any_backend_at_each_step(models: Path, step: int) -> None:
    before, after = list(pairwise(backend_token_steps()))[step]

    for (sent, _), (_, told) in product((before, after), repeat=2):
        async with (
            listening_backend(models, **told) as listening,
            HttpBackendClient(token=sent) as client,
        ):
            state = await client.state(listening.endpoint(), time_limit=PATIENCE)

        assert state.models


async def test_the_former_token_is_refused_after_the_rotation(models: Path) -> None:
    async with (
        listening_backend(models, token=NEW) as listening,
        HttpBackendClient(token=OLD) as client,
    ):
        with pytest.raises(CallFailed) as caught:
            await client.state(listening.endpoint(), time_limit=PATIENCE)

    assert caught.value.status == 401


async def test_redis_takes_both_passwords_until_the_former_is_removed(own_valkey: Valkey) -> None:
    own_valkey.configure("requirepass", OLD)
    first, last = (own_valkey.url.replace("unix://", f"unix://:{each}@") for each in (OLD, NEW))
    before, after = (connect(url, timeout=PATIENCE) for url in (first, last))
    admin = connect(first, timeout=PATIENCE)
    try:
        assert await before.set("kept", 1)
        await admin.acl_setuser("default", enabled=True, passwords=[f"+{NEW}"])
        assert await before.get("kept") == await after.get("kept") == b"1"

        await admin.acl_setuser("default", enabled=True, passwords=[f"-{OLD}"])
        assert await after.get("kept") == b"1"
        assert await before.get("kept") == b"1", "a connection that exists goes on"
    finally:
        for client in (before, after, admin):
            await client.aclose()

    late = connect(first, timeout=PATIENCE)
    with pytest.raises(RedisConnectionError, match="invalid username-password pair"):
        await late.get("kept")
    await late.aclose()


@pytest.mark.system
def test_a_second_role_of_postgresql_has_what_the_first_made(postgresql: PostgreSQL) -> None:
    url = make_url(postgresql.database())
    engine = sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        schema = connection.scalar(sqlalchemy.text("SELECT current_schema()"))
        for statement in (
            "CREATE ROLE ledger_a LOGIN",
            f"ALTER SCHEMA {schema} OWNER TO ledger_a",
            # Those of docs/operations/rotate-secrets.md.
            "CREATE ROLE ledger_b LOGIN PASSWORD 'another' IN ROLE ledger_a",
            "ALTER ROLE ledger_b SET role = 'ledger_a'",
        ):
            connection.exec_driver_sql(statement)
    engine.dispose()
    former, latter = (
        Ledger.create(url.set(username=name).render_as_string(hide_password=False), clock=Clock())
        for name in ("ledger_b", "ledger_a")
    )

    with latter, former:
        former.accounts.create_tenant("acme", actor="tests")
        latter.accounts.create_tenant("bolt", actor="tests")
        found = [ledger.accounts.tenants() for ledger in (former, latter)]

    assert [[tenant.id for tenant in tenants] for tenants in found] == [["acme", "bolt"]] * 2
