"""Requests that are refused get a whole error of their route's form, and cost nothing else."""

from typing import Any

import msgspec
import pytest
from litestar.types import Message, Receive, Scope, Send
from typing_extensions import override

from sluicegate.gateway.api.customer_application import CustomerApplication
from sluicegate.gateway.api.load_shedding import WORKER_DELAY, LoadShedder, LoopIterations
from sluicegate.gateway.api.request_headers import RequestOptions
from sluicegate.gateway.api.routes import inference_routes
from sluicegate.gateway.types import Criticality
from tests.support.api import KEY, Api
from tests.support.entry_points import EntryPoint

pytestmark = pytest.mark.anyio
_OPTIONS = RequestOptions(allowed=10.0)
_BODY = b'{"model":"sentiment","input":"new"}'
_HEAD = f"POST /v1/classify HTTP/1.1\r\nhost: w\r\nauthorization: Bearer {KEY}\r\n"


class Overloaded(LoopIterations):
    """Refuses all that is not critical."""

    def __init__(self) -> None:
        super().__init__(most=0.05)

    @override
    def add_request(self) -> bool:
        return True

    @override
    def refuses(self, criticality: Criticality, allowed: float) -> str | None:
        return None if criticality is Criticality.CRITICAL else WORKER_DELAY


class Passed:
    """The application, which answers nothing and notes the paths it is given."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.paths.append(scope["path"])


@pytest.fixture
async def api(anyio_backend: str) -> Api:
    return Api()


@pytest.fixture
async def shedder(api: Api) -> LoadShedder:
    return api.shedder(Overloaded())


@pytest.fixture
async def passed(anyio_backend: str) -> Passed:
    return Passed()


@pytest.fixture
async def app(api: Api, shedder: LoadShedder, passed: Passed) -> CustomerApplication:
    steps = api.steps_with(shedder)
    routes = inference_routes(api.dialects)
    return CustomerApplication(steps, passed, routes=routes, keys=api.keys, bodies=api.bodies)


async def ask(
    app: CustomerApplication, path: str, method: str = "POST", **headers: str
) -> list[Any]:
    """Return the messages with which a request is answered."""
    sent: list[Message] = []
    fields = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope: Any = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": fields,
    }

    async def receive() -> Any:
        raise AssertionError("the body was read")

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent


async def test_a_refusal_says_when_to_come_back_and_is_counted(
    app: CustomerApplication, api: Api
) -> None:
    start, body = await ask(app, "/v1/classify", x_request_id="order-1")
    api.metrics.flush()

    headers, problem = dict(start["headers"]), msgspec.json.decode(body["body"])
    assert (start["status"], problem["code"]) == (503, "overloaded")
    assert headers[b"retry-after"] in {b"1", b"2"}
    assert headers[b"x-request-id"].decode() == problem["request_id"]
    assert headers[b"x-client-request-id"] == b"order-1"
    counted = api.registry.get_sample_value(
        "sluicegate_requests_shed_total", {"reason": WORKER_DELAY}
    )
    assert counted == 1


async def test_refusals_are_told_apart_and_do_not_bring_callers_back_at_once(
    app: CustomerApplication,
) -> None:
    heads = [dict((await ask(app, "/v1/classify"))[0]["headers"]) for _ in range(12)]

    assert len({head[b"x-request-id"] for head in heads}) == 12
    assert len({head[b"retry-after-ms"] for head in heads}) == 12


async def test_a_dialect_is_refused_in_its_own_form(app: CustomerApplication) -> None:
    _, body = await ask(app, "/v1/embeddings")

    assert "error" in msgspec.json.decode(body["body"])


@pytest.mark.parametrize(
    ("path", "method"),
    [
        ("/health/live", "GET"),
        ("/health/ready", "GET"),
        ("/v1/models", "GET"),
        ("/v1/keys", "POST"),
    ],
)
async def test_what_is_no_inference_is_not_refused(
    app: CustomerApplication, passed: Passed, path: str, method: str
) -> None:
    await ask(app, path, method)

    assert passed.paths == [path]


async def test_critical_requests_pass_and_so_do_those_that_cannot_be_read(
    app: CustomerApplication,
) -> None:
    critical, _ = await ask(app, "/v1/classify", sluicegate_criticality="critical")
    unreadable, _ = await ask(app, "/v1/classify", sluicegate_criticality="whatever")

    # Neither has a key.
    assert (critical["status"], unreadable["status"]) == (401, 401)


async def test_the_fast_path_refuses_before_it_charges_and_still_answers_hits(
    anyio_backend: str,
) -> None:
    entry_point = EntryPoint(fast=True)
    api = entry_point.api
    request = f"{_HEAD}content-length: {len(_BODY)}\r\n\r\n".encode()
    await entry_point.send(request + _BODY.replace(b"new", b"old"))
    await entry_point.send(request + _BODY.replace(b"new", b"old"))
    api.fast_path._shedder = api.shedder(Overloaded())
    entry_point.events()

    refused = await entry_point.send(request + _BODY)
    events_of_refused = entry_point.events()
    hit = await entry_point.send(request + _BODY.replace(b"new", b"old"))

    assert refused.startswith(b"HTTP/1.1 503 ")
    assert b"\r\nretry-after: " in refused
    assert b"ratelimit" not in refused
    assert hit.startswith(b"HTTP/1.1 200 ")
    assert events_of_refused == []
    assert len(entry_point.events()) == 1
