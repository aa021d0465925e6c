"""A reload applies every field of the document to a running worker.

Each case changes one field and finds the effect, or the refusal that names the field. A field of
the schema without a case fails here.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Annotated, Any, get_args, get_origin

import msgspec
import pytest

from sluicegate.gateway.auth.keys import hash_key
from sluicegate.gateway.config.document import Document
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.operations.publishing import Publisher
from sluicegate.gateway.redis.client import connect
from sluicegate.gateway.runtime.control import Control
from testing.valkey import Valkey
from tests.support import (
    reload_cases,
    reload_guard_cases,
    reload_routing_cases,
    reload_store_cases,
)
from tests.support.ledgers import ledger_url
from tests.support.reload_scene import LONG, OTHER_KEY, ReloadScene
from tests.support.table_resolver import TableResolver
from tests.support.worker import running_worker

pytestmark = pytest.mark.anyio
CASES = (
    reload_cases.CASES
    | reload_guard_cases.CASES
    | reload_routing_cases.CASES
    | reload_store_cases.CASES
)


def leaves(kind: Any, path: str) -> Iterator[str]:
    """Yield the fields below `kind` that hold values, as docs/configuration.md writes them."""
    if get_origin(kind) is Annotated:
        yield from leaves(get_args(kind)[0], path)
    elif get_origin(kind) is tuple:
        yield from leaves(get_args(kind)[0], f"{path}[]")
    elif get_origin(kind) is dict:
        yield from leaves(get_args(kind)[1], f"{path}.*")
    elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        for field in msgspec.structs.fields(kind):
            yield from leaves(field.type, f"{path}.{field.name}".removeprefix("."))
    else:
        yield path


# With any of these a case would outlive the test: the worker must not go by what it started with.
AT_THE_START = {
    **dict.fromkeys(("attempt_timeout", "connect_timeout", "probe_timeout", "dns_timeout"), LONG),
    **dict.fromkeys(("probe_interval", "dns_interval"), 3_600.0),
    "max_calls_per_backend": 1,
}
FIELDS = sorted(leaves(Document, ""))


@pytest.fixture(scope="module")
async def stage(
    tmp_path_factory: pytest.TempPathFactory, anyio_backend: str
) -> AsyncIterator[dict[str, Any]]:
    """What all scenes share: a worker, and those who publish documents for it."""
    folder, resolver = tmp_path_factory.mktemp("worker"), TableResolver()
    async with AsyncExitStack() as stack:
        url = stack.enter_context(Valkey()).url
        ledger = stack.enter_context(Ledger.create(ledger_url(folder)))
        ledger.accounts.create_tenant("other")
        ledger.accounts.create_key("other", key_hash=hash_key(OTHER_KEY))
        worker = await stack.enter_async_context(
            running_worker(folder, url, resolver=resolver, routing=AT_THE_START)
        )
        redis = connect(url, timeout=60.0)
        stack.push_async_callback(redis.aclose)
        publisher = Publisher(
            control=Control(redis),
            ledger=ledger,
            settings=worker.settings,
            clock=lambda: 0.0,
            workers_timeout=60.0,
        )
        yield {
            "worker": worker,
            "publisher": publisher,
            "ledger": ledger,
            "redis": redis,
            "resolver": resolver,
        }


@pytest.fixture
async def scene(
    stage: dict[str, Any], request: pytest.FixtureRequest
) -> AsyncIterator[ReloadScene]:
    name = f"m{FIELDS.index(request.getfixturevalue('field'))}"
    async with stage["worker"].connect() as connection:
        found = ReloadScene(name=name, connection=connection, **stage)
        async with found.eu, found.us:
            yield found
            # The worker opens no connection to backends that stop.
            await found.put(regions=[])


def test_every_field_of_the_schema_has_a_case() -> None:
    assert sorted(CASES) == FIELDS


@pytest.mark.parametrize("field", FIELDS)
async def test_a_reload_applies(field: str, scene: ReloadScene) -> None:
    await CASES[field](scene)
