"""Pages of other origins use a real worker, on the fast path and through the application."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack

import pytest

from sluicegate.gateway.auth.keys import hash_key
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.ledger.types import KeyBounds
from testing.raw_http import KEY, Response, post
from testing.stub_backend import StubBackend
from testing.valkey import Valkey
from tests.support.worker import RunningWorker, classify, running_worker

pytestmark = pytest.mark.anyio
ALL, ACME, BROWSER, STRANGER = (
    f"https://{name}.example" for name in ("all", "acme", "browser", "stranger")
)
LIMITED, OTHER = "sk-a-key-for-browsers-only", "sk-a-key-of-another-tenant"
PAGE, NAMED, WIDE = (f"sk-a-key-for-pages-{name}" for name in ("alone", "and-usage", "and-all"))


@pytest.fixture(scope="module")
async def worker(
    tmp_path_factory: pytest.TempPathFactory, valkey_server: Valkey, anyio_backend: str
) -> AsyncIterator[RunningWorker]:
    valkey_server.flush()  # tests before may have published a document
    folder = tmp_path_factory.mktemp("worker")
    async with AsyncExitStack() as stack:
        stub = await stack.enter_async_context(StubBackend())
        running = running_worker(
            folder,
            valkey_server.url,
            [stub],
            cors={"origins": [ALL], "tenants": {"acme": [ACME]}, "max_age": 60},
        )
        worker = await stack.enter_async_context(running)
        with Ledger.create(worker.settings.ledger) as ledger:
            bounds = KeyBounds(origins=(BROWSER,), routes=("/v1/classify", "/v1/infer/*"))
            ledger.accounts.create_key("acme", key_hash=hash_key(LIMITED), bounds=bounds)
            for key, routes in ((PAGE, None), (NAMED, ("/v1/usage",)), (WIDE, ("/v1/*",))):
                bounds = KeyBounds(origins=(BROWSER,), routes=routes)
                ledger.accounts.create_key("acme", key_hash=hash_key(key), bounds=bounds)
            ledger.accounts.create_tenant("other")
            ledger.accounts.create_key("other", key_hash=hash_key(OTHER))
        await worker.parts._principals.read_again()
        yield worker


async def ask(
    worker: RunningWorker,
    origin: str,
    *,
    key: str = KEY,
    path: str = "/v1/classify",
    method: str = "POST",
    headers: Mapping[str, str] | None = None,
) -> Response:
    named = ({"origin": origin} if origin else {}) | dict(headers or {})
    async with worker.connect() as connection:
        await connection.send(post(path, classify("a"), key=key, method=method, headers=named))
        if method == "OPTIONS":
            status, found = await connection.head()
            return Response(status=status, headers=found, body=b"")
        return await connection.response()


@pytest.mark.parametrize(
    ("origin", "key", "allowed"),
    [
        (ALL, KEY, ALL),
        (ALL, OTHER, ALL),
        (ACME, KEY, ACME),
        (ACME, OTHER, ""),
        (BROWSER, LIMITED, BROWSER),
        (BROWSER, KEY, ""),
        (STRANGER, KEY, ""),
    ],
)
@pytest.mark.parametrize("path", ["/v1/classify", "/v1/infer/stub"])
async def test_a_page_may_read_answers_where_its_origin_is_allowed(
    worker: RunningWorker, origin: str, key: str, allowed: str, path: str
) -> None:
    for _ in range(3):  # a miss, a hit, and one that repeats it
        found = (await ask(worker, origin, key=key, path=path)).headers

        assert found.get("access-control-allow-origin", "") == allowed
        assert found["vary"] == "Origin"
        exposed = found.get("access-control-expose-headers", "")
        assert ("X-Request-Id" in exposed and "Cache-Status" in exposed) is bool(allowed)
        assert "access-control-allow-credentials" not in found


async def test_who_is_no_page_is_told_nothing(worker: RunningWorker) -> None:
    for _ in range(3):
        found = await ask(worker, "")

        assert found.status == 200
        assert not {"vary", "access-control-allow-origin"} & found.headers.keys()


async def test_a_page_may_read_why_its_key_is_refused(worker: RunningWorker) -> None:
    found = await ask(worker, ACME, key="sk-nobody-has-this-one")

    assert found.status == 401
    assert found.headers["access-control-allow-origin"] == ACME


@pytest.mark.parametrize("origin", [ALL, ACME, BROWSER])
async def test_a_preflight_needs_no_key(worker: RunningWorker, origin: str) -> None:
    asked = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, content-type, x-stainless-lang",
    }
    found = await ask(worker, origin, key="", method="OPTIONS", headers=asked)

    assert found.status == 204
    assert found.headers["access-control-allow-origin"] == origin
    assert "POST" in found.headers["access-control-allow-methods"]
    assert found.headers["access-control-allow-headers"] == asked["access-control-request-headers"]
    assert found.headers["access-control-max-age"] == "60"
    assert "Access-Control-Request-Headers" in found.headers["vary"]
    assert "content-length" not in found.headers


async def test_a_preflight_of_a_stranger_and_other_options_are_refused(
    worker: RunningWorker,
) -> None:
    asked = {"access-control-request-method": "POST"}
    stranger = await ask(worker, STRANGER, method="OPTIONS", headers=asked)
    plain = await ask(worker, ALL, method="OPTIONS")

    assert (stranger.status, plain.status) == (403, 405)
    assert "access-control-allow-origin" not in stranger.headers


@pytest.mark.parametrize("origin", ["", STRANGER, ALL])
async def test_a_key_for_some_origins_is_refused_from_others(
    worker: RunningWorker, origin: str
) -> None:
    found = await ask(worker, origin, key=LIMITED)

    assert (found.status, found.json()["code"]) == (403, "permission_denied")


async def test_a_key_for_some_routes_is_refused_on_others(worker: RunningWorker) -> None:
    statuses = [
        (await ask(worker, BROWSER, key=LIMITED, path=path)).status
        for path in ("/v1/classify", "/v1/infer/stub", "/v1/embed", "/v1/infer")
    ]

    assert statuses == [200, 400, 403, 403]  # the second has the body of another route


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/keys/rotate"),
        ("GET", "/v1/files"),
        ("GET", "/v1/files/file_1/content"),
        ("DELETE", "/v1/files/file_1"),
        ("POST", "/v1/batches"),
        ("GET", "/v1/requests/req_1"),
        ("GET", "/v1/usage"),
        ("GET", "/v1/usage/"),
        ("GET", "/v1/%75sage"),
        ("GET", "/v1///usage"),
    ],
)
async def test_a_key_in_a_page_has_nothing_of_the_tenants_account(
    worker: RunningWorker, method: str, path: str
) -> None:
    for key in (PAGE, WIDE):
        found = await ask(worker, BROWSER, key=key, path=path, method=method)

        assert found.status == 403
        assert b"This key is for pages" in found.body


async def test_a_key_in_a_page_has_of_the_account_what_its_routes_name(
    worker: RunningWorker,
) -> None:
    named = await ask(worker, BROWSER, key=NAMED, path="/v1/usage", method="GET")
    statuses = [(await ask(worker, BROWSER, key=key)).status for key in (PAGE, WIDE)]

    assert (named.status, statuses) == (200, [200, 200])
