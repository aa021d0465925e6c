"""Models, tenants and times that cannot be meant are refused by name, and nothing has changed."""

from collections.abc import AsyncIterator

import httpx
import msgspec
import pytest
from redis.asyncio import Redis

from sluicegate.gateway.config.sources import DocumentSource
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.runtime.control import Control
from sluicegate.gateway.runtime.control_values import Published
from sluicegate.gateway.runtime.follower import RuntimeFollower, first_runtime
from sluicegate.gateway.runtime.store import RuntimeStore
from sluicegate.gateway.settings import Settings
from sluicegate.wire.protocol import Task
from testing.stub_backend import stub_model
from tests.support.admin import client_of, refused
from tests.support.dispatching import state
from tests.support.scripted_client import ScriptedClient

pytestmark = pytest.mark.anyio
_REGIONS = 'regions: [{name: eu, pools: [{backends: [{id: eu-0, url: "http://127.0.0.1:1"}]}]}]'
RULE = {"name": "minute", "unit": "items", "capacity": 5, "window": 60.0}


@pytest.fixture
async def serving(settings: Settings, redis: Redis) -> AsyncIterator[None]:
    """A worker whose backend serves `sentiment`, and has trouble with `topics`."""
    backend: dict[str, object] = {"backend": "eu-0", "region": "eu", "health": "ready"}
    backend |= {"models": {"sentiment": "abc"}, "problems": {"topics": "it is broken"}}
    report = msgspec.json.encode({"fleet": [backend]})
    store = RuntimeStore(await first_runtime(redis, settings))
    async with RuntimeFollower(
        store=store, control=Control(redis), settings=settings, report=lambda: report, poll=0.05
    ):
        yield


@pytest.fixture
async def tenant(admin: httpx.AsyncClient) -> str:
    (await admin.post("/admin/tenants", json={"id": "acme"})).raise_for_status()
    return "acme"


@pytest.mark.usefixtures("serving")
async def test_a_model_that_nobody_serves_is_refused_by_name(
    admin: httpx.AsyncClient, tenant: str
) -> None:
    for method, path, body in [
        ("POST", "/admin/keys", {"tenant": "acme", "models": ["sentiment", "sentimnet"]}),
        ("POST", "/admin/keys", {"tenant": "acme", "limits": [RULE | {"model": "sentimnet"}]}),
        ("PUT", "/admin/tenants/acme/limits", [RULE | {"model": "sentimnet"}]),
        ("POST", "/admin/tenants", {"id": "new", "limits": [RULE | {"model": "sentimnet"}]}),
        ("POST", "/admin/cache/purge", {"model": "sentimnet"}),
    ]:
        problem = refused(await admin.request(method, path, json=body), 400, "invalid_request")

        assert "`sentimnet`; did you mean `sentiment`?" in problem["detail"]
        assert (await admin.get("/admin/keys")).json()["keys"] == []
        listed = (await admin.get("/admin/tenants")).json()["tenants"]
        assert [(each["id"], each["limits"]) for each in listed] == [(tenant, [])]


@pytest.mark.usefixtures("serving")
@pytest.mark.parametrize("model", ["sentiment", "topics", "m", "later"])
async def test_models_that_are_served_broken_or_in_the_document_are_known(
    admin: httpx.AsyncClient, tenant: str, model: str
) -> None:
    """One that is served later is put into the document first."""
    document = "models: {m: {}, later: {planned: true}}"
    published = await admin.put("/admin/config", content="models: {later: {planned: true}}")
    assert published.status_code == 200, published.text
    refused(await admin.put("/admin/config", content=document), 422, "invalid_configuration")
    if model == "m":
        published = await admin.put(
            "/admin/config", content=document.replace("m: {}", "m: {planned: true}")
        )
        assert published.status_code == 200, published.text

    body = {"tenant": tenant, "models": [model], "limits": [RULE | {"model": model}]}
    assert (await admin.post("/admin/keys", json=body)).status_code == 201


@pytest.mark.usefixtures("serving")
async def test_a_document_that_names_an_unknown_model_is_refused_with_its_place(
    admin: httpx.AsyncClient,
) -> None:
    for document, field in [
        ("models:\n  sentimnet: {scope: shared}\n", "models.sentimnet"),
        (
            "limits:\n  key:\n  - {name: a, unit: items, capacity: 1, window: 1, model: sentimnet}",
            "limits.key[0].model",
        ),
        ("prices:\n  - {model: sentimnet, since: '2031-01-01'}\n", "prices[0].model"),
    ]:
        answer = await admin.put("/admin/config", content=document, params={"dry_run": "true"})
        problem = refused(answer, 422, "invalid_configuration")

        assert problem["field"] == field
        assert problem["line"] >= 2
        assert "did you mean `sentiment`?" in problem["detail"]
        assert "planned: true" in problem["detail"]


async def test_a_document_that_shows_texts_of_an_unknown_tenant_is_refused(
    admin: httpx.AsyncClient, tenant: str
) -> None:
    document = f"decisions:\n  texts:\n  - {tenant}\n  - acmee\n"

    answer = await admin.put("/admin/config", content=document, params={"dry_run": "true"})

    problem = refused(answer, 422, "invalid_configuration")
    assert (problem["field"], problem["line"]) == ("decisions.texts[1]", 4)
    assert problem["detail"] == "there is no tenant `acmee`; did you mean `acme`?"


@pytest.mark.usefixtures("serving")
async def test_a_document_that_takes_a_served_model_from_all_pools_is_refused(
    admin: httpx.AsyncClient,
) -> None:
    for models, status in [("{}", 422), ("{sentiment: {enabled: false}}", 200)]:
        pool = "{name: one, models: [others], backends: [{id: eu-0, url: 'http://127.0.0.1:9'}]}"
        document = f"regions: [{{name: eu, pools: [{pool}]}}]\nmodels: {models}\n"

        answer = await admin.put("/admin/config", content=document, params={"dry_run": "true"})

        assert answer.status_code == status
        if status == 422:
            problem = refused(answer, 422, "invalid_configuration")
            assert problem["detail"].startswith("no backend would serve `sentiment`")
            assert problem["field"] == "regions"


async def test_while_no_backend_has_been_heard_of_names_are_taken_as_they_are(
    admin: httpx.AsyncClient, tenant: str
) -> None:
    """Keys are made before the first backend is up; nobody can tell yet what will be served."""
    published = await admin.put("/admin/config", content="models: {anything: {}}")
    made = await admin.post("/admin/keys", json={"tenant": tenant, "models": ["whatever"]})

    assert (published.status_code, made.status_code) == (200, 201)


async def test_a_tenant_that_there_is_not_is_refused_by_name(admin: httpx.AsyncClient) -> None:
    for method, path, body in [
        ("POST", "/admin/keys", {"tenant": "nobody"}),
        ("GET", "/admin/keys?tenant=nobody", None),
        ("PUT", "/admin/tenants/nobody/limits", [RULE]),
        ("POST", "/admin/cache/purge", {"tenant": "nobody"}),
        ("GET", "/admin/usage?tenant=nobody", None),
        ("GET", "/admin/regions/shares?tenant=nobody", None),
    ]:
        problem = refused(await admin.request(method, path, json=body), 404, "not_found")

        assert "`nobody`" in problem["detail"]


async def test_null_is_a_name_like_any_other(admin: httpx.AsyncClient) -> None:
    """It does not stand for all tenants."""
    for path in ["keys", "usage", "regions/shares"]:
        problem = refused(await admin.get(f"/admin/{path}?tenant=null"), 404, "not_found")

        assert "`null`" in problem["detail"]


async def test_a_key_that_would_have_expired_is_refused(
    admin: httpx.AsyncClient, tenant: str
) -> None:
    body = {"tenant": tenant, "expires": "2020-01-01T00:00:00Z"}

    problem = refused(await admin.post("/admin/keys", json=body), 400, "invalid_request")

    assert "`expires`" in problem["detail"]
    assert (await admin.get("/admin/keys")).json()["keys"] == []


@pytest.fixture
async def classifying(
    settings: Settings, redis: Redis, ledger: Ledger
) -> AsyncIterator[httpx.AsyncClient]:
    """Operators' client, with a backend whose model `mood` has the labels `joy` and `anger`."""
    backends, model = ScriptedClient(), stub_model("mood")
    model = msgspec.structs.replace(model, tasks=[Task.CLASSIFY], labels=["joy", "anger"])
    encoder = msgspec.structs.replace(model, name="vectors", tasks=[Task.EMBED], labels=None)
    guard = msgspec.structs.replace(model, name="guard", tasks=[Task.GUARD], labels=None)
    backends.states["eu-0"] = state("eu-0", models=[model, encoder, guard])
    (settings.config / "regions.yaml").write_text(_REGIONS)
    async with client_of(settings, redis, ledger, backends) as admin:
        yield admin


async def test_a_moderation_by_a_label_that_the_model_does_not_have_is_refused(
    classifying: httpx.AsyncClient,
) -> None:
    """A category of it would have the score 0 for ever."""
    for entry, status, said in (
        ("mood: {moderation: {angr: hate}}", 422, "did you mean `anger`? It has `joy`, `anger`"),
        ("vectors: {moderation: {joy: hate}}", 422, "no labels of its own; name a classifier"),
        ("mood: {moderation: {anger: hate}}", 200, ""),
        ("later: {planned: true, moderation: {any: hate}}", 200, ""),
    ):
        text = f"{_REGIONS}\nmodels: {{{entry}}}\n"
        answer = await classifying.put("/admin/config", content=text, params={"dry_run": "true"})
        assert (answer.status_code, said in answer.text) == (status, True), answer.text


@pytest.mark.parametrize(
    ("policy", "labels", "status", "said"),
    [
        ("guards: {x: {DETECTOR}}", "labels: {angr: 0.5}", 422, "did you mean `anger`?"),
        ("guards: {x: {DETECTOR}}", "expected: {angr: 0.5}", 422, "did you mean `anger`?"),
        ("guards: {x: {DETECTOR}}", "labels: {anger: 0.5}", 200, ""),
        (
            "routers: {x: {default: a, rules: [{detector: one, target: b}], DETECTOR}}",
            "labels: {angr: 0.5}",
            422,
            "did you mean `anger`?",
        ),
    ],
)
async def test_a_detector_by_a_label_that_its_model_does_not_have_is_refused(
    classifying: httpx.AsyncClient, policy: str, labels: str, status: int, said: str
) -> None:
    """Otherwise the guard or router would fail at each text."""
    detector = f"model: guard, detectors: [{{name: one, kind: classifier, model: mood, {labels}}}]"
    text = f"{_REGIONS}\n{policy.replace('DETECTOR', detector)}\n"

    answer = await classifying.put("/admin/config", content=text, params={"dry_run": "true"})

    assert (answer.status_code, said in answer.text) == (status, True), answer.text


async def test_labels_are_not_checked_while_the_active_document_cannot_be_read(
    classifying: httpx.AsyncClient, redis: Redis
) -> None:
    """The active document names the backends. It must be replaceable all the same."""
    unreadable = Published(
        generation=1,
        origin=1,
        digest="0" * 16,
        sources=(DocumentSource(name="document.yaml", text="models: {m: {of_a_later_one: 1}}"),),
        author="admin",
        reason="put",
        time=0.0,
    )
    assert await Control(redis).publish(unreadable)
    detector = "{name: one, kind: classifier, model: mood, labels: {anger: 0.5}}"
    text = f"{_REGIONS}\nguards: {{x: {{model: guard, detectors: [{detector}]}}}}\n"

    answer = await classifying.put("/admin/config", content=text)

    assert (answer.status_code, answer.json()["generation"]) == (200, 2), answer.text
