"""The operators' listener: the configuration document."""

import httpx
import pytest
from redis.asyncio import Redis

from sluicegate.gateway.config.sources import DocumentSource
from sluicegate.gateway.runtime.control import Control
from sluicegate.gateway.runtime.control_values import Published
from sluicegate.gateway.runtime.store import RuntimeStore
from sluicegate.gateway.settings import Settings
from tests.support.admin import refused

pytestmark = pytest.mark.anyio


async def test_a_reload_answers_when_every_worker_has_taken_it(
    admin: httpx.AsyncClient, worker: RuntimeStore
) -> None:
    answer = await admin.post("/admin/config/reload")

    change = answer.json()
    assert (answer.status_code, change["generation"], change["live"]) == (200, 1, True)
    assert list(change["workers"].values()) == ["ok"]
    assert worker.current.generation == 1


async def test_a_broken_folder_is_refused_with_file_line_and_field(
    admin: httpx.AsyncClient, worker: RuntimeStore, settings: Settings
) -> None:
    await admin.post("/admin/config/reload")
    file = settings.config / "g.yaml"
    file.write_text("models:\n  m:\n    cache_tll: 1\n")

    problem = refused(await admin.post("/admin/config/reload"), 422, "invalid_configuration")

    place = (problem["file"], problem["line"], problem["field"])
    assert place == (str(file), 3, "models.m.cache_tll")
    assert worker.current.generation == 1


async def test_the_document_is_shown_with_who_has_taken_it(
    admin: httpx.AsyncClient, worker: RuntimeStore
) -> None:
    refused(await admin.get("/admin/config"), 404, "not_found")
    await admin.post("/admin/config/reload")

    answer = await admin.get("/admin/config")

    shown = answer.json()
    assert shown["document"]["models"]["m"]["cache_ttl"] == 1
    assert shown["files"][0]["text"].startswith("models:")
    assert list(shown["workers"].values()) == ["ok"]
    assert answer.headers["etag"] == f'"1-{shown["digest"]}"'


async def test_a_put_needs_the_version_it_names(
    admin: httpx.AsyncClient, worker: RuntimeStore
) -> None:
    first = await admin.post("/admin/config/reload")
    text = "models: {m: {cache_ttl: 7}}"
    tag = {"if-match": first.headers["etag"]}

    dry = await admin.put("/admin/config?dry_run=true", content=text, headers=tag)
    before = worker.current.generation
    put = await admin.put("/admin/config", content=text, headers=tag)
    again = await admin.put("/admin/config", content=text, headers=tag)

    assert (dry.status_code, dry.json()["valid"], before) == (200, True, 1)
    assert put.json()["generation"] == 2
    assert worker.current.document.models["m"].cache_ttl == 7
    refused(again, 412, "precondition_failed")


async def test_a_document_is_later_than_the_one_before_whatever_the_clock_says(
    admin: httpx.AsyncClient, worker: RuntimeStore
) -> None:
    await admin.post("/admin/config/reload")
    first = worker.current.published

    await admin.put("/admin/config", content="models: {m: {cache_ttl: 7}}")

    assert int(worker.current.published * 1000) > int(first * 1000)


@pytest.mark.parametrize(
    ("content", "code"),
    [(b"models: [", "invalid_configuration"), (b"\xff", "invalid_request")],
)
async def test_a_put_that_is_no_document_is_refused(
    admin: httpx.AsyncClient, content: bytes, code: str
) -> None:
    answer = await admin.put("/admin/config", content=content)

    assert refused(answer, answer.status_code, code)["detail"]


async def test_a_rollback_brings_the_former_document_back(
    admin: httpx.AsyncClient, worker: RuntimeStore
) -> None:
    await admin.post("/admin/config/reload")
    await admin.put("/admin/config", content="models: {m: {cache_ttl: 7}}")

    answer = await admin.post("/admin/config/rollback")

    assert answer.json()["generation"] == 3
    assert worker.current.document.models["m"].cache_ttl == 1
    refused(await admin.post("/admin/config/rollback", json={"generation": 99}), 404, "not_found")
    refused(await admin.post("/admin/config/rollback", json={"to": 1}), 400, "invalid_request")


async def test_a_rollback_tells_whose_texts_operators_see_again(
    admin: httpx.AsyncClient, worker: RuntimeStore
) -> None:
    for tenant in ("acme", "beta"):
        (await admin.post("/admin/tenants", json={"id": tenant})).raise_for_status()
    await admin.put("/admin/config", json={"decisions": {"texts": ["acme", "beta"]}})
    opted_out = await admin.put("/admin/config", json={"decisions": {"texts": ["beta"]}})

    answer = await admin.post("/admin/config/rollback")

    assert answer.json()["notice"] == "operators now see sampled texts of: acme"
    assert opted_out.json()["notice"] == ""


async def test_a_cache_that_would_break_the_bound_on_memory_is_refused(
    admin: httpx.AsyncClient, worker: RuntimeStore, settings: Settings
) -> None:
    await admin.post("/admin/config/reload")
    file = settings.config / "g.yaml"
    file.write_text(f"cache:\n  memory_bytes: {settings.memory_limit_bytes}\n")

    problem = refused(await admin.post("/admin/config/reload"), 422, "invalid_configuration")

    assert (problem["line"], problem["field"]) == (2, "cache.memory_bytes")
    assert "SLUICEGATE_MEMORY_LIMIT_BYTES" in problem["detail"]
    assert worker.current.generation == 1


@pytest.mark.parametrize("change", ["put", "reload", "rollback"])
async def test_a_document_that_this_version_cannot_read_is_replaced(
    admin: httpx.AsyncClient, redis: Redis, worker: RuntimeStore, change: str
) -> None:
    """Another version published it: with a field of its own, or within other bounds."""
    first = (await admin.post("/admin/config/reload")).json()["generation"]
    text = "models: {m: {of_a_later_version: 1}}"
    other = Published(
        generation=first + 1,
        origin=first + 1,
        digest="0" * 16,
        sources=(DocumentSource(name="document.yaml", text=text),),
        author="admin",
        reason="put",
        time=0.0,
    )
    assert await Control(redis).publish(other)

    if change == "put":
        answer = await admin.put("/admin/config", content="models: {m: {cache_ttl: 7}}")
    else:
        answer = await admin.post(f"/admin/config/{change}")

    assert (answer.status_code, answer.json()["generation"]) == (200, first + 2), answer.text
    assert worker.current.generation == first + 2
