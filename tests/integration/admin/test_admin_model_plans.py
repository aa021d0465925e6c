"""Plans of models over the operators' listener: stored, audited, rolled back, or refused whole."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
from redis.asyncio import Redis
from typing_extensions import override

from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.settings import Settings
from sluicegate.gateway.types import Endpoint
from sluicegate.wire.plans import PlanTrial, Serving
from sluicegate.wire.protocol import ModelInfo, PlanVerdict
from testing.stub_backend import stub_model
from tests.support.admin import client_of, refused
from tests.support.dispatching import state
from tests.support.documents import conforms, operations, resolved
from tests.support.scripted_client import ScriptedClient

pytestmark = pytest.mark.anyio
DOCUMENT = """
regions:
  - {name: eu, pools: [{backends: [{id: eu-0, url: "http://127.0.0.1:1"}]}]}
  - {name: us, pools: [{backends: [{id: us-0, url: "http://127.0.0.1:2"}]}]}
"""
SPLIT = {"revisions": {"1": 90, "2": 10}}


class Repository(ScriptedClient):
    """Backends whose `mood` has the revisions 1 to 3; the third is broken."""

    def __init__(self) -> None:
        super().__init__()
        for backend in ("eu-0", "us-0"):
            self.states[backend] = state(backend, models=[mood()])

    @override
    async def check(
        self, endpoint: Endpoint, trial: PlanTrial, *, time_limit: float
    ) -> PlanVerdict:
        revisions = (trial.plan and trial.plan.revisions) or {"1": 1}
        if "3" in revisions and endpoint.backend == "us-0":
            return PlanVerdict(problems={"mood@3": "it is broken"})
        arms = [mood(f"mood@{number}") for number in revisions]
        return PlanVerdict(models=[mood(serving=trial.plan), *arms])


def mood(name: str = "mood", serving: Serving | None = None) -> ModelInfo:
    serving = serving or Serving(revisions={"1": 1})
    return msgspec.structs.replace(stub_model(name), serving=serving)


@pytest.fixture
def backends() -> Repository:
    return Repository()


@pytest.fixture
async def admin(
    settings: Settings, redis: Redis, ledger: Ledger, backends: Repository
) -> AsyncIterator[httpx.AsyncClient]:
    (settings.config / "regions.yaml").write_text(DOCUMENT)
    async with client_of(settings, redis, ledger, backends) as client:
        yield client


async def actions(admin: httpx.AsyncClient) -> list[str]:
    answer = (await admin.get("/admin/audit")).json()
    return [entry["action"] for entry in reversed(answer["entries"])]


async def changed(admin: httpx.AsyncClient, method: str, path: str, body: Any = None) -> Any:
    answer = await admin.request(method, f"/admin/models/mood/{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_split_is_stored_and_audited_once_however_often_it_is_asked_for(
    admin: httpx.AsyncClient, ledger: Ledger
) -> None:
    first = await changed(admin, "PUT", "split", SPLIT)
    again = await changed(admin, "PUT", "split", SPLIT)

    assert (first["changed"], again["changed"], again["live"]) == (True, False, True)
    assert ledger.plans.load().plans == {"mood": Serving(revisions={"1": 90, "2": 10})}
    assert await actions(admin) == ["models.split"]


async def test_a_dry_run_checks_and_stores_nothing(
    admin: httpx.AsyncClient, ledger: Ledger
) -> None:
    checked = await changed(admin, "PUT", "split?dry_run=true", SPLIT)
    broken = {"revisions": {"1": 1, "3": 1}}
    problem = await admin.put("/admin/models/mood/split?dry_run=true", json=broken)

    assert checked["plan"]["revisions"] == SPLIT["revisions"]
    refused(problem, 422, "plan_refused")
    assert ledger.plans.load().plans == {}


async def test_what_one_backend_cannot_serve_is_refused_for_all(
    admin: httpx.AsyncClient, ledger: Ledger
) -> None:
    answer = await admin.put("/admin/models/mood/split", json={"revisions": {"1": 1, "3": 1}})

    problem = refused(answer, 422, "plan_refused")
    assert problem["detail"] == "`mood@3` on `us-0`: it is broken"
    assert ledger.plans.load().version == 0
    assert await actions(admin) == []


async def test_a_rollback_goes_back_to_the_shares_before_and_twice_is_once(
    admin: httpx.AsyncClient,
) -> None:
    first = await changed(admin, "PUT", "split", SPLIT)
    await changed(admin, "PUT", "split", {"revisions": {"2": 1}})
    await changed(admin, "PUT", "shadow", {"revision": "1", "share": 5})

    back = await changed(admin, "POST", "rollback")
    again = await changed(admin, "POST", "rollback")

    assert back["plan"] == again["plan"] == first["plan"]
    assert (back["changed"], again["changed"]) == (True, False)


async def test_after_the_first_change_a_rollback_is_what_the_folder_says(
    admin: httpx.AsyncClient,
) -> None:
    await changed(admin, "PUT", "shadow", {"revision": "2"})

    assert (await changed(admin, "POST", "rollback"))["plan"] is None
    reset = await changed(admin, "DELETE", "split")
    assert (reset["plan"], reset["changed"]) == (None, False)


async def test_a_shadow_that_is_to_answer_is_no_shadow_any_more(admin: httpx.AsyncClient) -> None:
    shadowed = await changed(admin, "PUT", "shadow", {"revision": "2", "share": 5})
    split = await changed(admin, "PUT", "split", SPLIT)

    assert shadowed["plan"]["shadow"] == {"revision": "2", "share": 5, "tolerance": 0.01}
    assert split["plan"]["shadow"] is None


async def test_a_backend_that_is_away_is_named_and_holds_up_nothing(
    admin: httpx.AsyncClient, backends: Repository
) -> None:
    del backends.states["us-0"]

    found = await changed(admin, "PUT", "split", SPLIT)

    assert found["away"].keys() == {"us-0"}
    assert found["changed"]


async def test_what_is_not_there_is_refused_by_name(
    admin: httpx.AsyncClient, backends: Repository
) -> None:
    unknown = await admin.put("/admin/models/moos/split", json=SPLIT)
    numbered = await admin.get("/admin/models/mood@1/arms")
    nothing = await admin.post("/admin/models/mood/rollback")
    wrong = await admin.put("/admin/models/mood/split", json={"revisions": {"one": 1}})
    backends.states.clear()
    away = await admin.get("/admin/models/mood/arms")

    assert "did you mean `mood`?" in refused(unknown, 404, "not_found")["detail"]
    refused(numbered, 404, "not_found")
    assert "`mood`" in refused(nothing, 404, "not_found")["detail"]
    refused(wrong, 400, "invalid_request")
    refused(away, 503, "upstream_unavailable")


async def test_examples_are_answered_as_documented(admin: httpx.AsyncClient) -> None:
    document = (await admin.get("/openapi.json")).json()

    for method, path, operation in operations(document):
        if not path.startswith("/admin/models/{model}"):
            continue
        bodies = operation.get("requestBody", {}).get("content", {}).values()
        body = next((e["value"] for c in bodies for e in c["examples"].values()), None)
        answer = await admin.request(method, path.format(model="mood"), json=body)

        documented = resolved(document, operation["responses"][str(answer.status_code)])
        media = answer.headers["content-type"].partition(";")[0]
        conforms(document, documented["content"][media]["schema"], answer.json())
