"""The overview, backends and models on the console, and what a viewer may not do there."""

import re
from collections.abc import AsyncIterator

import httpx
import msgspec
import pytest
from redis.asyncio import Redis

from sluicegate.gateway.console.history import History
from sluicegate.gateway.console.traffic import Reading
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.runtime.control import Control
from sluicegate.gateway.runtime.follower import RuntimeFollower, first_runtime, identity
from sluicegate.gateway.runtime.store import RuntimeStore
from sluicegate.gateway.settings import Settings
from sluicegate.gateway.telemetry.guard_decisions import (
    GuardDecision,
    KeptDecisions,
    SeenFinding,
    key_of,
)
from sluicegate.gateway.telemetry.metric_reading import Series
from sluicegate.gateway.types import Endpoint
from sluicegate.wire.guards import DetectorScores
from sluicegate.wire.plans import Serving
from sluicegate.wire.protocol import Call, Done, GpuState, Report, Task
from tests.support.admin import AUTHORIZATION, KEY
from tests.support.console import VIEWER_KEY, ModelStates, log_in, mood
from tests.support.dispatching import state
from tests.support.scripted_client import Step

pytestmark = pytest.mark.anyio
_DOCUMENT = """
regions:
  - name: eu
    pools:
      - backends: [{id: eu-0, url: "http://127.0.0.1:1"}, {id: eu-1, url: "http://127.0.0.1:2"}]
guards:
  chat:
    model: mood
    detectors:
      - {name: anger, kind: classifier, model: tone, labels: {"<b>angry": 0.9}}
      - {name: contacts, kind: formats, formats: [email], action: redact}
"""
_TASKS = ["classify", "tokenize", "detokenize"]
_HTMX = {"hx-request": "true"}
_GPU = GpuState(
    device=0,
    uuid="GPU-1",
    name="NVIDIA H100",
    used_bytes=2**34,
    total_bytes=80 * 2**30,
    utilization=0.61,
    watts=312.4,
    throttling=["heat"],
    ecc_errors=(7, 2),
)


@pytest.fixture
def settings(settings: Settings) -> Settings:
    (settings.config / "regions.yaml").write_text(_DOCUMENT)
    return settings


@pytest.fixture
async def worker(settings: Settings, redis: Redis) -> AsyncIterator[None]:
    """A worker that sees one backend ready, whose `mood` it serves, and one that is gone."""
    models = {"mood": "aa", "mood@2": "bb"}
    fleet = [
        {"backend": "eu-0", "health": "ready", "models": models, "gpu": _GPU},
        {"backend": "eu-1", "health": "not_ready", "missing": ["<b>no model</b>"]},
    ]
    finding = SeenFinding(detector="anger", label="<i>angry", score=0.987, length=12)
    scores = {"anger": DetectorScores({"<i>angry": 0.987})}
    decision = GuardDecision(verdict="block", findings=[finding], scores=scores, tenant="acme")
    failed = GuardDecision(verdict="block", error="overloaded", time=60.0)
    many = [GuardDecision(verdict="allow", length=777, time=120.0)] * 20
    kept = KeptDecisions({}, [*many, decision, failed])
    await redis.hset(key_of(identity(settings)), "chat", msgspec.msgpack.encode(kept))
    report = msgspec.json.encode({"fleet": fleet})
    async with RuntimeFollower(
        store=RuntimeStore(await first_runtime(redis, settings)),
        control=Control(redis),
        settings=settings,
        report=lambda: report,
        poll=0.05,
    ):
        yield


async def actions(ledger: Ledger) -> list[tuple[str, str, str]]:
    return [(line.actor, line.action, line.subject) for line in ledger.audit.entries()]


@pytest.mark.usefixtures("worker")
async def test_the_overview_says_what_is_degraded(operator: httpx.AsyncClient) -> None:
    page = await operator.get("/console")

    assert "1 of 2 backends in eu: not ready (eu-1)." in page.text
    assert 'sse-connect="/console/overview/live"' in page.text


@pytest.mark.usefixtures("worker")
async def test_the_playground_offers_what_a_model_does(
    operator: httpx.AsyncClient, repository: ModelStates
) -> None:
    info = msgspec.structs.replace(mood(), tasks=[Task.CLASSIFY], shows_tokens=True)
    repository.states["eu-0"] = state("eu-0", models=[info])
    page = await operator.get("/console/playground")
    asked = {"task": "rerank", "model": "mood"}
    part = await operator.get("/console/playground/example", params=asked)
    unknown = await operator.get("/console/playground/example", params=asked | {"model": "gone"})

    assert re.findall("<option[^>]*>([^<]+)", page.text) == [*_TASKS, "mood", "mood@2", "chat"]
    assert re.findall("<option[^>]*>([^<]+)", part.text) == _TASKS
    assert '"input"' in part.text.replace("&#34;", '"')
    assert "<option selected>rerank" in unknown.text


@pytest.mark.usefixtures("worker")
async def test_the_playground_opens_for_a_model_of_guards(
    operator: httpx.AsyncClient, repository: ModelStates
) -> None:
    info = msgspec.structs.replace(mood(), tasks=[Task.GUARD])
    repository.states["eu-0"] = state("eu-0", models=[info])

    page = await operator.get("/console/playground")
    part = await operator.get("/console/playground/example?task=guard&model=mood")

    for shown in (page, part):
        assert shown.status_code == 200
        assert "<option selected>classify" in shown.text
        assert ">guard<" not in shown.text


@pytest.mark.usefixtures("worker")
async def test_the_playground_offers_guards_and_their_task(operator: httpx.AsyncClient) -> None:
    page = await operator.get("/console/playground")
    part = await operator.get("/console/playground/example?task=classify&model=guard:chat")

    assert '<option value="guard:chat">chat</option>' in page.text
    assert re.findall("<option[^>]*>([^<]+)", part.text) == ["guard"]
    assert "ada@example.com" in part.text


@pytest.mark.usefixtures("worker")
async def test_guards_are_shown_with_detectors_verdicts_and_decisions(
    operator: httpx.AsyncClient, history: History
) -> None:
    labels = (("action", "redact"), ("detector", "contacts"), ("guard", "chat"))
    counted: dict[Series, float] = {
        ("sluicegate_guard_texts_total", (("guard", "chat"), ("verdict", "redact"))): 40.0,
        ("sluicegate_guard_findings_total", labels): 41.0,
        ("sluicegate_guard_failed_texts_total", (("guard", "chat"),)): 1.0,
    }
    empty = await operator.get("/console/guards")
    history.add(Reading(at=0.0, values={}))
    history.add(Reading(at=1.0, values=counted))

    page = await operator.get("/console/guards")
    part = await operator.get("/console/guards", headers=_HTMX)

    assert "No text yet on this machine." in empty.text
    for shown in (page.text, part.text):
        assert "&lt;b&gt;angry from 0.9" in shown
        assert "anger, &lt;i&gt;angry, 0.99, 12</td>" in shown
        assert "anger, &lt;i&gt;angry, 0.99</td>" in shown
        assert '<td class="num">41</td>' in shown
        assert "1 of 40 texts</span> on this machine since 1970-01-01 00:00 UTC." in shown
        places = [shown.index(one) for one in ("overloaded", "&lt;i&gt;angry", "777")]
        assert places == sorted(places)  # errors first, then the strongest verdicts
        assert shown.count("777") == 6
    assert "<html" not in part.text


@pytest.mark.usefixtures("worker")
async def test_a_guard_is_tried_on_the_page(
    browser: httpx.AsyncClient, repository: ModelStates
) -> None:
    async def judge(endpoint: Endpoint, call: Call) -> AsyncIterator[Step]:
        assert endpoint.backend == "eu-0"
        found = b'{"verdict":"flag","findings":[{"detector":"words"}]}'
        for index in range(len(call.items)):
            yield Done(index=index, result=found, rows=1, tokens=1)
        yield Report()

    repository.script = judge
    proposed = """guards:
  chat:
    model: mood
    detectors: [{name: words, kind: words, words: [film], action: flag}]
"""
    form = {"guard": "chat", "texts": "a film\n\nanother", "proposed": proposed}
    await log_in(browser, KEY)

    tried = await browser.post("/console/guards/try", data=form, headers=_HTMX)
    wrong = await browser.post(
        "/console/guards/try", data=form | {"proposed": "guards: {chat: {}}"}, headers=_HTMX
    )
    await log_in(browser, VIEWER_KEY)
    refused = await browser.post("/console/guards/try", data=form, headers=_HTMX)

    rows = re.findall(r'<th scope="row">([^<]+)</th><td class="num">2</td>', tried.text)
    assert rows == ["flag", "found by words"]
    assert wrong.status_code == 422
    assert refused.status_code == 403


async def test_the_history_is_for_operators(
    browser: httpx.AsyncClient, operator: httpx.AsyncClient
) -> None:
    assert (await operator.get("/console/overview/history")).json() == []

    operator.cookies.clear()
    assert (await browser.get("/console/overview/history")).status_code == 303


async def test_models_without_reports_are_said_to_be_unknown(operator: httpx.AsyncClient) -> None:
    listed = await operator.get("/console/models")
    one = await operator.get("/console/models/mood")

    assert "No worker reports" in listed.text
    assert "No backend serves a model" not in listed.text
    assert one.status_code == 404
    assert "No worker reports" in one.text


async def test_a_key_alone_opens_the_routes_and_no_page(browser: httpx.AsyncClient) -> None:
    page = await browser.get("/console/backends", headers=AUTHORIZATION)
    route = await browser.get("/admin/regions", headers=AUTHORIZATION)

    assert page.status_code == 303
    assert page.headers["location"].startswith("/console/login")
    assert route.status_code == 200


@pytest.mark.usefixtures("worker")
async def test_backends_are_shown_escaped_and_filtered(operator: httpx.AsyncClient) -> None:
    page = await operator.get("/console/backends")
    part = await operator.get("/console/backends?attention=true", headers=_HTMX)

    assert "&lt;b&gt;no model" in page.text
    assert "2 of 2 backends" in page.text
    assert "1 of 2 backends" in part.text
    assert "eu-0" not in part.text
    assert "<html" not in part.text


@pytest.mark.usefixtures("worker")
async def test_a_backend_is_shown_with_its_gpu(operator: httpx.AsyncClient) -> None:
    page = await operator.get("/console/backends")

    assert "NVIDIA H100: 61 % busy, 16.0 GiB of 80.0 GiB, 312 W" in page.text
    assert "throttled: heat" in page.text
    assert "memory errors: 2" in page.text
    assert page.text.count("busy,") == 1


@pytest.mark.usefixtures("worker")
async def test_backends_whose_workers_report_need_no_notice(operator: httpx.AsyncClient) -> None:
    page = await operator.get("/console/backends")

    assert "No worker reports" not in page.text


async def test_backends_without_reports_are_said_to_be_unknown(operator: httpx.AsyncClient) -> None:
    page = await operator.get("/console/backends")
    part = await operator.get("/console/backends", headers=_HTMX)

    for shown in (page, part):
        assert "not seen" in shown.text
        assert "No worker reports" in shown.text


@pytest.mark.usefixtures("worker")
async def test_a_backend_is_drained_and_restored_with_an_audit(
    operator: httpx.AsyncClient, ledger: Ledger
) -> None:
    drained = await operator.post("/console/backends/eu/eu-0/drain", headers=_HTMX)
    restored = await operator.post("/console/backends/eu/eu-0/restore", headers=_HTMX)
    unknown = await operator.post("/console/backends/eu/eu-9/drain", headers=_HTMX)

    assert "eu-0 is drained" in drained.text
    assert "Restore" in drained.text
    assert "eu-0 is restored" in restored.text
    assert unknown.status_code == 404
    assert "There is no backend <code>eu-9</code>" in unknown.text
    changes = [each for each in await actions(ledger) if each[1].startswith("backend.")]
    assert sorted(changes) == [
        ("admin", "backend.drain", "eu-0"),
        ("admin", "backend.restore", "eu-0"),
    ]


@pytest.mark.usefixtures("worker")
async def test_models_are_listed_with_their_revisions(operator: httpx.AsyncClient) -> None:
    page = await operator.get("/console/models")
    none = await operator.get("/console/models?q=other", headers=_HTMX)
    unknown = await operator.get("/console/models/other")

    assert "/console/models/mood" in page.text
    assert "mood@2" not in page.text
    assert "No model matches" in none.text
    assert unknown.status_code == 404


@pytest.mark.usefixtures("worker")
async def test_a_model_whose_requests_fail_is_listed_with_its_errors(
    operator: httpx.AsyncClient, history: History
) -> None:
    name = "sluicegate_requests_total"
    counted: dict[Series, float] = {
        (name, (("model", "mood"), ("status", "200"))): 10.0,
        (name, (("model", "mood"), ("status", "502"))): 40.0,
    }
    history.add(Reading(at=0.0, values={}))
    history.add(Reading(at=1.0, values=counted))

    page = await operator.get("/console/models")

    assert '<td class="num">50</td><td class="num bad">40, 80 %</td>' in page.text


@pytest.mark.usefixtures("worker")
async def test_what_revisions_did_is_asked_of_the_backends(operator: httpx.AsyncClient) -> None:
    part = await operator.get("/console/models/mood/arms", headers=_HTMX)

    assert "1 backend serves" in part.text
    assert 'name="weight-2"' in part.text


@pytest.mark.usefixtures("worker")
async def test_revisions_show_counts_only_where_they_are_counted(
    operator: httpx.AsyncClient, repository: ModelStates
) -> None:
    alone = await operator.get("/console/models/mood/arms", headers=_HTMX)
    shared = mood(serving=Serving(revisions={"1": 90, "2": 10}))
    repository.states["eu-0"] = state("eu-0", models=[shared])
    split = await operator.get("/console/models/mood/arms", headers=_HTMX)

    assert "Counts begin" in alone.text
    assert '<td class="num">0</td>' not in alone.text
    assert "Counts begin" not in split.text
    assert '<td class="num">0</td>' in split.text


async def test_items_are_shared_after_a_check(operator: httpx.AsyncClient, ledger: Ledger) -> None:
    form = {"weight-1": "90", "weight-2": "0", "new_revision": "2", "new_weight": "10"}
    checked = await operator.post("/console/models/mood/split", data=form | {"dry_run": "true"})
    before = ledger.plans.plan("mood")
    shared = await operator.post("/console/models/mood/split", data=form)
    after = ledger.plans.plan("mood")

    assert "Every backend can serve" in checked.text
    assert before.plan is None
    assert shared.headers["hx-trigger"] == "plan-changed"
    assert after.plan is not None
    assert after.plan.revisions == {"1": 90, "2": 10}


async def test_a_shadow_is_added_and_all_is_rolled_back(
    operator: httpx.AsyncClient, ledger: Ledger
) -> None:
    await operator.post("/console/models/mood/shadow", data={"revision": "2", "share": "10"})
    mirrored = ledger.plans.plan("mood").plan
    await operator.post("/console/models/mood/shadow", data={"revision": ""})
    ended = ledger.plans.plan("mood").plan
    await operator.post("/console/models/mood/rollback", data={})
    await operator.post("/console/models/mood/reset", data={})

    assert mirrored is not None
    assert mirrored.shadow is not None
    assert mirrored.shadow.share == 10.0
    assert ended is not None
    assert ended.shadow is None
    assert ledger.plans.plan("mood").plan is None


async def test_a_split_that_cannot_be_served_is_refused(operator: httpx.AsyncClient) -> None:
    for form, status, text in [
        ({"weight-1": "0"}, 400, "at least one revision"),
        ({"weight-1": "-1"}, 400, "whole numbers"),
        ({"weight-x": "1"}, 400, "numbers of folders"),
        ({"weight-3": "1"}, 422, "it is broken"),
        ({"weight-1": "9" * 30}, 400, "at most 9 digits"),
    ]:
        refused = await operator.post("/console/models/mood/split", data=form, headers=_HTMX)

        assert refused.status_code == status
        assert text in refused.text


async def test_a_shadow_without_sense_is_refused(operator: httpx.AsyncClient) -> None:
    for form in ({"revision": "2", "share": "all"}, {"revision": "2", "share": "101"}):
        refused = await operator.post("/console/models/mood/shadow", data=form, headers=_HTMX)
        assert refused.status_code == 400


@pytest.mark.usefixtures("worker")
async def test_a_viewer_sees_no_actions_and_is_refused_them(browser: httpx.AsyncClient) -> None:
    await log_in(browser, VIEWER_KEY)

    shown = [
        (await browser.get(path)).text
        for path in ("/console/backends", "/console/models/mood/arms")
    ]
    refused = [
        await browser.post(path, data={}, headers=_HTMX)
        for path in (
            "/console/backends/eu/eu-0/drain",
            "/console/models/mood/split",
            "/console/models/mood/rollback",
        )
    ]

    assert all("hx-post" not in text for text in shown)
    assert [each.status_code for each in refused] == [403, 403, 403]
    assert "<code>vera</code> lacks the role <code>operator</code>" in refused[0].text
    assert (await log_in(browser, KEY)).status_code == 303
