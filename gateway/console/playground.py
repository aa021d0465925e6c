"""Lets operators send a request to the customers' listener, and shows the response."""

import asyncio
from datetime import timedelta

import msgspec
from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromQuery

from sluicegate.gateway.api.schemas import BODIES
from sluicegate.gateway.auth.keys import is_well_formed
from sluicegate.gateway.console.access import AnyRequest, Context
from sluicegate.gateway.console.form_fields import fields_of
from sluicegate.gateway.console.forms import Fields, one
from sluicegate.gateway.console.frame import Frame
from sluicegate.gateway.console.marked_text import judged_texts
from sluicegate.gateway.console.playground_client import PlaygroundClient
from sluicegate.gateway.errors import (
    ConfigurationError,
    DependencyUnavailable,
    InvalidRequest,
    PayloadTooLarge,
)
from sluicegate.gateway.operations.accounts import NewKey, NewKeys, create_keys
from sluicegate.gateway.operations.active_document import ActiveDocumentReader
from sluicegate.gateway.operations.backend_calls import BackendCalls
from sluicegate.gateway.operations.fleet_view import reported_backends
from sluicegate.gateway.operations.operators import Role
from sluicegate.gateway.periods import utc_now
from sluicegate.gateway.runtime.control import Control
from sluicegate.wire.protocol import Task

MOST_BYTES = 1024 * 1024
KEY_LIFE = timedelta(hours=1)
TEST_TENANT = "playground"
_OK = 200
_EXAMPLES = {body.task: body.example for body in BODIES}
_GUARD_EXAMPLE = {"input": "Write to ada@example.com", "restore": True}
# Marks the name of a guard where the form has the name of a model.
_GUARD = "guard:"


class PlaygroundController(Controller):
    """Serves the playground. Only the browser stores the key, the body and the response."""

    path = "/playground"
    opt = {"role": Role.OPERATOR}  # noqa: RUF012 - Litestar reads it
    include_in_schema = False

    @get("/")
    async def page(
        self,
        request: AnyRequest,
        frame: NamedDependency[Frame],
        control: NamedDependency[Control],
        active: NamedDependency[ActiveDocumentReader],
        backend_calls: NamedDependency[BackendCalls],
    ) -> Response[str]:
        """Return the page."""
        models = await _models(control)
        model = models[0] if models else ""
        tasks = await _tasks(backend_calls, model)
        task = tasks[0]
        context = {
            "models": models,
            "guards": [_GUARD + name for name in await _guards(active)],
            "tasks": tasks,
            "task": task,
            "body": example(task, model),
            "tenant": TEST_TENANT,
            "key": "",
            "until": None,
        }
        return frame.render(request, "playground.html", context)

    @get("/example")
    async def example(
        self,
        request: AnyRequest,
        frame: NamedDependency[Frame],
        backend_calls: NamedDependency[BackendCalls],
        task: FromQuery[Task],
        model: FromQuery[str] = "",
    ) -> Response[str]:
        """Return the tasks of a model, and an example body.

        The example is for `task` if the model has this task. Otherwise, it is for one of the
        model's tasks.
        """
        tasks = await _tasks(backend_calls, model)
        task = task if task in tasks else tasks[0]
        context = {"tasks": tasks, "task": task, "body": example(task, model)}
        return frame.render(request, "playground/_example.html", context)

    @post("/key", status_code=200)
    async def create_key(
        self,
        request: AnyRequest,
        frame: NamedDependency[Frame],
        context: Context,
    ) -> Response[str]:
        """Create a test key that expires in an hour, and put it into the form."""
        tenant = one(await fields_of(request), "tenant") or TEST_TENANT
        until = utc_now() + KEY_LIFE
        name = f"playground of {context.operator.name}"
        wanted = NewKeys(
            keys=[NewKey(tenant=tenant, name=name, expires=until)],
            new_tenants=tenant == TEST_TENANT,
        )
        (made,) = (await create_keys(context, wanted)).keys
        shown = {"key": made.key, "until": until, "tenant": tenant}
        return frame.render(request, "playground/_key.html", shown)

    @post("/run", status_code=200)
    async def run(
        self,
        request: AnyRequest,
        frame: NamedDependency[Frame],
        playground: NamedDependency[PlaygroundClient],
    ) -> Response[str]:
        """Send the request to the customers' listener, and return the response."""
        fields = await fields_of(request)
        task, body = _task(fields), _body(fields)
        answer = await playground.send(
            task=task,
            model=one(fields, "model").removeprefix(_GUARD),
            body=body,
            key=_key(fields),
            fresh=bool(one(fields, "fresh")),
        )
        text = await asyncio.to_thread(_indented, answer.body, is_cut=answer.is_cut)
        is_judged = task is Task.GUARD and answer.status == _OK and not answer.is_cut
        judged = await asyncio.to_thread(judged_texts, body, answer.body) if is_judged else []
        context = {"answer": answer, "text": text, "judged": judged}
        return frame.render(request, "playground/_answer.html", context)


def example(task: Task, model: str) -> str:
    """Return an example body for a task, as indented JSON."""
    body = dict(_GUARD_EXAMPLE if task is Task.GUARD else _EXAMPLES[task])
    if "model" in body and model:
        body["model"] = model
    return msgspec.json.format(msgspec.json.encode(body), indent=2).decode()


async def _models(control: Control) -> list[str]:
    try:
        seen = await reported_backends(control)
    except DependencyUnavailable:
        return []
    return sorted({name for view in seen.values() for name in view.models})


async def _guards(active: ActiveDocumentReader) -> list[str]:
    try:
        return sorted((await active.document()).guards)
    except ConfigurationError:
        return []


async def _tasks(backend_calls: BackendCalls, model: str) -> list[Task]:
    """Return the tasks of the model that have examples, or all of these if it has none.

    The only task of a guard is `guard`. The model that runs its detectors has no task here, because
    the path of a request names the guard.
    """
    if model.startswith(_GUARD):
        return [Task.GUARD]
    try:
        found = await backend_calls.tasks(model) if model else []
    except (ConfigurationError, DependencyUnavailable):
        found = []
    return [task for task in found if task in _EXAMPLES] or list(_EXAMPLES)


def _task(fields: Fields) -> Task:
    try:
        return Task(one(fields, "task"))
    except ValueError as error:
        raise InvalidRequest("`task` must be one of the tasks of the form") from error


def _key(fields: Fields) -> str:
    key = one(fields, "key")
    if not is_well_formed(key):
        raise InvalidRequest("Enter an API key, or create a test key.")
    return key


def _body(fields: Fields) -> bytes:
    body = "".join(fields.get("body", ())).encode()
    if len(body) > MOST_BYTES:
        raise PayloadTooLarge(f"the playground sends at most {MOST_BYTES} bytes")
    return body


def _indented(text: str, *, is_cut: bool) -> str:
    if is_cut:
        return text
    try:
        return msgspec.json.format(text, indent=2)
    except msgspec.DecodeError:
        return text
