"""Lines are asked in this process; a stop ends them although the application answers it."""

import asyncio
import contextlib

import pytest
from litestar.types import Receive, Scope, Send

from gateway.app.batch_lines import ApplicationRunner, PrincipalsById, _options_of_line
from gateway.auth.keys import hash_key
from gateway.config.document import DeadlineConfig, Document, LimitsConfig
from gateway.runtime.runtime import compile_runtime
from gateway.runtime.store import RuntimeStore
from gateway.types import KeyId, Principal, Rule, TenantId
from tests.unit.gateway.batches.test_lines import BATCH

pytestmark = pytest.mark.anyio


async def test_a_line_is_a_request_with_the_key_of_its_batch() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        headers = dict(scope["headers"])
        said = b" ".join([scope["path"].encode(), headers[b"authorization"], message["body"]])  # type: ignore[typeddict-item]  # of a request
        await send({"type": "http.response.start", "status": 201, "headers": [(b"A-b", b"c")]})
        await send({"type": "http.response.body", "body": said[:9], "more_body": True})
        await send({"type": "http.response.body", "body": said[9:], "more_body": False})

    reply = await ApplicationRunner(app).ask(BATCH, "id", b"{}", late=0, left=60.0)

    assert (reply.status, reply.headers) == (201, {"a-b": "c"})
    assert reply.body == b"/v1/classify Bearer key_1 {}"


async def test_a_stop_ends_a_line_although_the_application_answers_it() -> None:
    began = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        began.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await send({"type": "http.response.start", "status": 503, "headers": []})

    asking = asyncio.create_task(ApplicationRunner(app).ask(BATCH, "id", b"{}", late=0, left=60.0))
    await began.wait()

    asking.cancel()

    with pytest.raises(asyncio.CancelledError):
        await asking


@pytest.mark.parametrize(
    ("late", "left", "allowed"),
    [(0, 9e4, 60.0), (3, 9e4, 480.0), (99, 9e4, 9e4), (1, 70.0, 70.0)],
)
async def test_a_line_that_was_late_has_more_time_as_long_as_its_batch_has(
    late: int, left: float, allowed: float
) -> None:
    found: list[float] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        found.append(_options_of_line(headers, DeadlineConfig()).allowed)
        await send({"type": "http.response.start", "status": 200, "headers": []})

    await ApplicationRunner(app).ask(BATCH, "id", b"{}", late=late, left=left)

    assert found == [allowed]


def test_a_principal_is_found_by_the_id_of_its_key_with_quotas_alone() -> None:
    rate = Rule(name="minute", unit="requests", capacity=5, window=60.0)
    quota = Rule(name="month", unit="items", capacity=5, period="month")
    one = Principal(tenant=TenantId("acme"), key=KeyId("key_1"), tenant_rules=(rate, quota))
    keys = PrincipalsById()
    keys.replace({hash_key("sk-a-key-of-a-tenant"): one})

    found = keys.find(b"key_1")

    assert found is not None
    assert quota in found.tenant_rules
    assert rate not in found.tenant_rules
    assert found.key_rules
    assert keys.find(b"sk-a-key-of-a-tenant") is None


def test_quotas_of_the_document_apply_to_tenants_and_keys_without_rules() -> None:
    rate = Rule(name="minute", unit="requests", capacity=5, window=60.0)
    quota = Rule(name="month", unit="items", capacity=5, period="month")
    limits = LimitsConfig(tenant=(rate, quota), key=(quota, rate))
    keys = PrincipalsById()
    keys.runtimes = RuntimeStore(compile_runtime(Document(limits=limits), 1))
    keys.replace({hash_key("sk-a-key"): Principal(tenant=TenantId("acme"), key=KeyId("key_1"))})

    found = keys.find(b"key_1")

    assert found is not None
    assert quota in found.tenant_rules
    assert quota in found.key_rules
    assert rate not in (*found.tenant_rules, *found.key_rules)


def test_a_key_of_a_page_makes_batches_too() -> None:
    """Lines have no origin; routes hold for them as for the request that made the batch."""
    one = Principal(
        tenant=TenantId("acme"),
        key=KeyId("key_1"),
        origins=frozenset({"https://acme.example"}),
        routes=frozenset({"/v1/batches", "/v1/classify"}),
    )
    keys = PrincipalsById()
    keys.replace({hash_key("sk-a-key-of-a-tenant"): one})

    found = keys.find(b"key_1")

    assert found is not None
    assert (found.origins, found.routes) == (None, one.routes)
