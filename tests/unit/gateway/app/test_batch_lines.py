"""Lines are answered in this process, under ids and limits of their own; a stop ends them."""

import asyncio

import msgspec
import pytest

from sluicegate.gateway.app.batch_lines import CoreRunner, LinePrincipals
from sluicegate.gateway.auth.key_ring import KeyRing
from sluicegate.gateway.auth.keys import hash_key
from sluicegate.gateway.config.document import Document, LimitsConfig
from sluicegate.gateway.ledger.batch_types import FAILED, RequestBatch
from sluicegate.gateway.runtime.runtime import compile_runtime
from sluicegate.gateway.runtime.store import RuntimeStore
from sluicegate.gateway.types import ItemFailure, KeyId, Principal, Rule, TenantId
from testing.waiting import until
from tests.support.api import Api
from tests.unit.gateway.batches.test_lines import BATCH

pytestmark = pytest.mark.anyio
ID = f"{BATCH.id}-0000001"
RATE = Rule(name="minute", unit="requests", capacity=5, window=60.0)
QUOTA = Rule(name="month", unit="items", capacity=5, period="month")
BODY = b'{"model": "sentiment", "input": ["a", "b"], "on_error": "continue"}'


@pytest.fixture
async def api(anyio_backend: str) -> Api:
    return Api()


def runner_of(api: Api) -> CoreRunner:
    return CoreRunner(
        api.core,
        routes=api.routes,
        runtimes=api.runtimes,
        keys=api.keys,
        publish=api.events.publish,
    )


async def test_a_line_is_a_request_with_the_key_of_its_batch(api: Api) -> None:
    reply = await runner_of(api).ask(BATCH, ID, BODY, late=0, left=60.0)

    (event,) = api.events.events
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    assert reply.headers["x-request-id"] == event.id == ID
    assert (event.key, event.batch, event.usage.items) == ("key_1", 1, 2)


async def test_equal_lines_have_events_of_their_own(api: Api) -> None:
    runner = runner_of(api)

    for number in range(3):
        await runner.ask(BATCH, f"{ID}{number}", BODY, late=0, left=60.0)
    api.processor.hits.events.commit()

    assert [event.id for event in api.events.events] == [f"{ID}{n}" for n in range(3)]


@pytest.mark.parametrize(
    ("batch", "body", "status"),
    [
        (msgspec.structs.replace(BATCH, key="key_9"), BODY, 401),
        (BATCH, b"{}", 400),
        (BATCH, b" " * 9_000_000, 413),
        (msgspec.structs.replace(BATCH, endpoint="/v1/gone"), BODY, 404),
    ],
)
async def test_a_line_that_cannot_be_run_is_answered(
    api: Api, batch: RequestBatch, body: bytes, status: int
) -> None:
    reply = await runner_of(api).ask(batch, ID, body, late=0, left=60.0)

    assert (reply.status, reply.headers["x-request-id"]) == (status, ID)
    assert not api.scene.runner.works


async def test_a_key_that_lost_the_route_of_its_batch_is_refused(api: Api) -> None:
    api.keys.replace({hash_key("sk-a-key"): Principal(
        tenant=TenantId("acme"), key=KeyId("key_1"), routes=frozenset({"/v1/embed"})
    )})  # fmt: skip

    reply = await runner_of(api).ask(BATCH, ID, BODY, late=0, left=60.0)

    assert (reply.status, api.events.events) == (403, [])


async def test_a_failed_line_is_recorded_apart_unless_it_will_be_tried_again(api: Api) -> None:
    runner = runner_of(api)
    busy = ItemFailure(status=503, code="overloaded", detail="Busy.", retryable=True)
    broken = ItemFailure(status=500, code="internal_error", detail="Broken.")

    for failure in (busy, broken):
        api.scene.runner.failure = failure
        await runner.ask(BATCH, ID, BODY.replace(b"continue", b"fail"), late=0, left=60.0)

    assert [(event.id, event.status) for event in api.events.events] == [(f"{ID}{FAILED}", 500)]


async def test_the_event_of_a_line_without_some_answers_waits_for_the_last_try(api: Api) -> None:
    runner = runner_of(api)
    await runner.ask(BATCH, "another", BODY.replace(b', "b"', b""), late=0, left=60.0)
    api.events.events.clear()
    api.scene.runner.failure = ItemFailure(status=503, code="overloaded", detail="Busy.")

    reply = await runner.ask(BATCH, ID, BODY, late=0, left=60.0)
    before = [*api.events.events]

    assert (reply.status, reply.passing, before) == (200, frozenset({503}), [])
    api.events.failing = True
    assert not reply.publish()
    api.events.failing = False
    assert reply.publish()
    assert [event.id for event in api.events.events] == [ID]


async def test_a_stop_ends_a_line_although_the_processor_answers_it(api: Api) -> None:
    api.scene.runner.gate.clear()
    asking = asyncio.create_task(runner_of(api).ask(BATCH, ID, BODY, late=0, left=60.0))
    await until(lambda: bool(api.scene.runner.works), what="the line is computed")

    asking.cancel()

    with pytest.raises(asyncio.CancelledError):
        await asking


@pytest.mark.parametrize(
    ("late", "left", "allowed"),
    [(0, 9e4, 60.0), (3, 9e4, 480.0), (99, 9e4, 9e4), (1, 70.0, 70.0), (0, 0.0, 1.0)],
)
async def test_a_line_that_was_late_has_more_time_as_long_as_its_batch_has(
    api: Api, late: int, left: float, allowed: float
) -> None:
    began = api.scene.loop_time()

    await runner_of(api).ask(BATCH, ID, BODY, late=late, left=left)

    (deadline,) = [work.deadline for work in api.scene.runner.works]
    assert deadline - began == pytest.approx(allowed, abs=0.9)


def test_a_principal_is_found_by_the_id_of_its_key_with_quotas_alone() -> None:
    one = Principal(tenant=TenantId("acme"), key=KeyId("key_1"), tenant_rules=(RATE, QUOTA))

    found = principals(one).find(KeyId("key_1"))

    assert found is not None
    assert QUOTA in found.tenant_rules
    assert RATE not in found.tenant_rules
    assert found.key_rules
    assert principals(one).find(KeyId("sk-a-key-of-a-tenant")) is None


def test_quotas_of_the_document_apply_to_tenants_and_keys_without_rules() -> None:
    limits = LimitsConfig(tenant=(RATE, QUOTA), key=(QUOTA, RATE))
    one = Principal(tenant=TenantId("acme"), key=KeyId("key_1"))

    found = principals(one, limits).find(KeyId("key_1"))

    assert found is not None
    assert QUOTA in found.tenant_rules
    assert QUOTA in found.key_rules
    assert RATE not in (*found.tenant_rules, *found.key_rules)


def test_a_key_of_a_page_makes_batches_too() -> None:
    """Lines have no origin; routes hold for them as for the request that made the batch."""
    one = Principal(
        tenant=TenantId("acme"),
        key=KeyId("key_1"),
        origins=frozenset({"https://acme.example"}),
        routes=frozenset({"/v1/batches", "/v1/classify"}),
    )

    found = principals(one).find(KeyId("key_1"))

    assert found is not None
    assert (found.origins, found.routes) == (None, one.routes)


def principals(one: Principal, limits: LimitsConfig | None = None) -> LinePrincipals:
    """The principals of lines, of which there is one."""
    document = Document(limits=limits or LimitsConfig())
    keys = KeyRing({hash_key("sk-a-key-of-a-tenant"): one})
    return LinePrincipals(keys, RuntimeStore(compile_runtime(document, 1)))
