"""An answer that was stored through one dialect is a hit through each other, and the same."""

import itertools
from collections.abc import AsyncIterator

import msgspec
import pytest

from loadtests.fuzz_dialects.backend import DOCUMENT_MODELS, MODELS, answer, models
from loadtests.fuzz_dialects.routes import EXTRACT, ROUTES, Asked, DialectRoute
from sluicegate.wire.protocol import Task
from testing.raw_http import Connection, post
from testing.stub_backend import StubBackend
from testing.valkey import Valkey
from tests.support.worker import RunningWorker, running_worker

pytestmark = pytest.mark.anyio
_TASKS = {task: name for name, tasks in MODELS.items() for task in tasks}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One loop for the module, since its tests share a worker."""
    return "asyncio"


@pytest.fixture(scope="module")
async def worker(
    tmp_path_factory: pytest.TempPathFactory, valkey_server: Valkey
) -> AsyncIterator[RunningWorker]:
    valkey_server.flush()
    folder = tmp_path_factory.mktemp("worker")
    async with (
        StubBackend(models=models(), behaviour=answer) as stub,
        running_worker(folder, valkey_server.url, [stub], models=DOCUMENT_MODELS) as running,
    ):
        yield running


async def ask(connection: Connection, route: DialectRoute, asked: Asked) -> str:
    """Return how an answer was found, once it is seen to be the right one."""
    path = route.path.replace("{model}", asked.model)
    await connection.send(post(path, msgspec.json.encode(route.body(asked))))
    response = await connection.response()
    assert response.status == 200, (route.name, response)
    assert route.read(response.json(), asked) == asked.expected(route.task), route.name
    return response.headers["cache-status"]


@pytest.mark.parametrize("task", _TASKS)
async def test_what_one_dialect_stored_is_a_hit_in_each_other(
    worker: RunningWorker, task: Task
) -> None:
    routes = [route for route in ROUTES if route.task is task]
    async with worker.connect() as connection:
        for first, second in itertools.permutations(routes, 2):
            if ("labelled" in first.name) is not ("labelled" in second.name):
                continue  # these find entities of other types
            pair = f"{first.name}, {second.name}"
            texts = [f"one of {pair}", f"another of {pair}"]
            asked = Asked(
                scope="tenant:acme",
                model=_TASKS[task],
                texts=texts[:1] if EXTRACT in (first.path, second.path) else texts,
                query="which",
                names=["trade", "art"],
            )

            assert "fwd=uri-miss" in await ask(connection, first, asked), pair
            assert "; hit" in await ask(connection, second, asked), pair
