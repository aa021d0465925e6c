"""Uses the console as a browser does: forms with their tokens, a cookie, htmx's headers."""

import re

import httpx
import msgspec
from typing_extensions import override

from sluicegate.gateway.operations.operators import Operator, Role
from sluicegate.gateway.types import Endpoint
from sluicegate.wire.plans import PlanTrial, Serving
from sluicegate.wire.protocol import ModelInfo, PlanVerdict
from testing.stub_backend import stub_model
from tests.support.dispatching import state
from tests.support.scripted_client import ScriptedClient

VIEWER_KEY = "the-key-of-a-viewer"
_TOKEN = re.compile(r'name="csrf" value="([^"]+)"')


def token_of(page: httpx.Response) -> str:
    """Return the token in the forms of a page."""
    found = _TOKEN.search(page.text)
    assert found is not None, page.text
    return found[1]


async def log_in(client: httpx.AsyncClient, key: str, **fields: str) -> httpx.Response:
    """Send the form that logs in; the client keeps the cookie, and the token for later forms."""
    form = await client.get("/console/login")
    response = await client.post(
        "/console/login", data={"csrf": token_of(form), "key": key, **fields}
    )
    if response.status_code == 303:
        page = await client.get("/console")
        client.headers["x-csrf-token"] = token_of(page)
    return response


class Viewers:
    """Knows one operator beside the admin, who may only look."""

    async def find(self, token: str) -> Operator | None:
        return Operator("vera", frozenset({Role.VIEWER})) if token == VIEWER_KEY else None


class ModelStates(ScriptedClient):
    """Answers for the backend `eu-0`, whose model `mood` has the revisions 1 and 2."""

    def __init__(self) -> None:
        super().__init__()
        self.states["eu-0"] = state("eu-0", models=[mood()])

    @override
    async def check(
        self, endpoint: Endpoint, trial: PlanTrial, *, time_limit: float
    ) -> PlanVerdict:
        revisions = (trial.plan and trial.plan.revisions) or {"1": 1}
        if "3" in revisions:
            return PlanVerdict(problems={"mood@3": "it is broken"})
        arms = [mood(f"mood@{number}") for number in revisions]
        return PlanVerdict(models=[mood(serving=trial.plan), *arms])


def mood(name: str = "mood", serving: Serving | None = None) -> ModelInfo:
    """Return the model, or a revision of it."""
    return msgspec.structs.replace(stub_model(name), serving=serving or Serving(revisions={"1": 1}))
