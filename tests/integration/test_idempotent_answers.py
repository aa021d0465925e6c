"""What is kept of the answers to requests with `Idempotency-Key`, and what they leave behind."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest

from sluicegate.gateway.api.cross_origin import CrossOrigin
from sluicegate.gateway.api.customer_application import CustomerApplication
from sluicegate.gateway.api.idempotent_requests import IdempotentRequests
from sluicegate.gateway.api.incoming_request import IncomingBodies
from sluicegate.gateway.api.inference_route import InferenceRoutes
from sluicegate.gateway.api.request_steps import RequestSteps
from sluicegate.gateway.auth.key_ring import KeyRing
from sluicegate.gateway.auth.keys import hash_key
from sluicegate.gateway.config.document import Document, IdempotencyConfig
from sluicegate.gateway.http.byte_budget import LARGE
from sluicegate.gateway.http.problem_details import PROBLEMS
from sluicegate.gateway.idempotency.store import IdempotencyStore
from sluicegate.gateway.redis.client import connect
from sluicegate.gateway.runtime.runtime import compile_runtime
from sluicegate.gateway.runtime.store import RuntimeStore
from sluicegate.gateway.types import KeyId, Principal, RequestId, Rule, TenantId
from testing.raw_http import KEY
from tests.support.limits import LocalRateLimiter

pytestmark = pytest.mark.anyio
_ONE = Rule(name="minute", unit="requests", capacity=1, window=60.0)


UNUSED: Any = None


class Application:
    """Answers with `statuses`, one after the other; `0` fails instead. `parts` make the body."""

    def __init__(self, *statuses: int, parts: Sequence[bytes] = (b"",)) -> None:
        self._statuses = list(statuses)
        self._parts = parts

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        await receive()
        status = self._statuses.pop(0)
        if not status:
            raise RuntimeError("a fault")
        await send({"type": "http.response.start", "status": status, "headers": []})
        for part in self._parts[:-1]:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": self._parts[-1], "more_body": False})


class Scene:
    """The steps before an application, and one caller's requests with a key of their own."""

    def __init__(self, store: IdempotencyStore) -> None:
        clock = asyncio.get_running_loop().time
        self.bodies = IncomingBodies()
        self._key = str(uuid.uuid4()).encode()
        self._idempotency = IdempotentRequests(
            store=store,
            limiter=LocalRateLimiter(monotonic=clock),
            has_route=lambda *_: True,
        )

    def before(self, application: Application, *rules: Rule) -> CustomerApplication:
        """Return an application behind the steps, for a tenant with these limits."""
        caller = Principal(tenant=TenantId("acme"), key=KeyId("key_1"), tenant_rules=rules)
        keys = KeyRing({hash_key(KEY): caller})
        runtimes = RuntimeStore(compile_runtime(Document(), 1))
        steps = RequestSteps(
            UNUSED,
            cross_origin=CrossOrigin(runtimes=runtimes, keys=keys),
            shedder=UNUSED,
            idempotency=self._idempotency,
            runtimes=runtimes,
            errors_of=lambda _: PROBLEMS,
            new_id=lambda: RequestId("req_1"),
        )
        routes = InferenceRoutes([])
        return CustomerApplication(steps, application, routes=routes, keys=keys, bodies=self.bodies)

    async def ask(
        self,
        asked: CustomerApplication,
        *,
        body: bytes | None = b"{}",
        query: bytes = b"",
        on_answer: Callable[[], Awaitable[None]] | None = None,
    ) -> tuple[int, bool] | None:
        """Return a status and whether it was replayed. Without a body the caller leaves."""
        scope: Any = {
            "type": "http",
            "method": "POST",
            "path": "/v1/classify",
            "raw_path": b"/v1/classify",
            "query_string": query,
            "headers": [
                (b"authorization", b"Bearer " + KEY.encode()),
                (b"idempotency-key", self._key),
            ],
        }
        sent: list[Any] = []

        async def receive() -> Any:
            if body is None:
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            if not sent and on_answer is not None:
                await on_answer()
            sent.append(message)

        await asked(scope, receive, send)
        if not sent:
            return None
        return sent[0]["status"], b"idempotency-replayed" in dict(sent[0]["headers"])


@pytest.fixture
async def scene(valkey: str, anyio_backend: str) -> AsyncIterator[Scene]:
    redis, clock = connect(valkey, timeout=60.0), asyncio.get_running_loop().time
    config = IdempotencyConfig(lease=60.0)
    async with IdempotencyStore(redis=redis, config=lambda: config, monotonic=clock) as store:
        yield Scene(store)
    await redis.aclose()


@pytest.mark.parametrize(
    ("first", "is_kept"),
    [(status, True) for status in (200, 201, 400, 413, 422)]
    + [(status, False) for status in (401, 402, 403, 404, 408, 409, 425, 429, 500, 503)],
)
async def test_an_answer_that_another_try_may_better_is_not_kept(
    first: int, *, is_kept: bool, scene: Scene
) -> None:
    asked = scene.before(Application(first, 204))

    answers = [await scene.ask(asked) for _ in range(2)]

    assert answers == [(first, False), (first, True) if is_kept else (204, False)]


async def test_a_fault_of_the_application_leaves_its_key_free(scene: Scene) -> None:
    asked = scene.before(Application(0, 200))

    with pytest.raises(RuntimeError):
        await scene.ask(asked)

    assert await scene.ask(asked) == (200, False)


@pytest.mark.parametrize(
    ("status", "parts"),
    [(503, [b""]), (200, [b""]), (200, [bytes(40_000)] * 3)],
    ids=["failed", "stored", "too long to store"],
)
async def test_a_claim_has_ended_before_the_answer_is_sent(
    status: int, parts: list[bytes], scene: Scene
) -> None:
    asked, retries = scene.before(Application(status, 200, parts=parts)), list[Any]()

    async def retry() -> None:
        retries.append(await scene.ask(asked))

    await scene.ask(asked, on_answer=retry)

    assert [retry[0] for retry in retries] == [200]


async def test_a_key_is_of_one_query(scene: Scene) -> None:
    asked = scene.before(Application(200))

    answers = [await scene.ask(asked, query=query) for query in (b"a=1", b"a=2")]

    assert answers == [(200, False), (422, False)]


async def test_a_used_up_limit_refuses_replays(scene: Scene) -> None:
    asked = scene.before(Application(200), _ONE)

    answers = [await scene.ask(asked) for _ in range(3)]

    assert answers == [(200, False), (200, True), (429, False)]


@pytest.mark.parametrize("status", [200, 0], ids=["answered", "failed"])
async def test_a_large_body_holds_memory_only_until_its_end(status: int, scene: Scene) -> None:
    asked = scene.before(Application(status))

    try:
        await scene.ask(asked, body=bytes(LARGE + 1))
    except RuntimeError:
        assert not status

    assert scene.bodies.budget.used_bytes == 0


async def test_a_caller_that_leaves_is_sent_nothing(scene: Scene) -> None:
    assert await scene.ask(scene.before(Application()), body=None) is None
