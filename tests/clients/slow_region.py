"""Gives a running system a region whose only model takes two seconds for each item."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import yaml
from anyio.from_thread import start_blocking_portal

from sluicegate.wire.protocol import Call, Done, Task
from testing.stub_backend import Reply, StubBackend, stub_model
from testing.system import System
from testing.waiting import wait_until

SLOW_MODEL = "slow"
_SERVICE_TIME = 2.0
_RESULTS = {Task.EMBED: b'{"embedding":[0.6,0.8]}', Task.RERANK: b'{"score":0.5}'}


async def _answer_slowly(stub: StubBackend, call: Call, reply: Reply) -> None:
    for index in range(len(call.items)):
        await asyncio.sleep(_SERVICE_TIME)
        result = _RESULTS[call.task]
        await reply.send(Done(index=index, result=result, rows=1, tokens=4))
    await reply.end(stub.report)


@contextmanager
def slow_region(system: System, config: Path) -> Iterator[None]:
    """Serve the slow model, in a region behind those of the system, while entered.

    `config` is the system's own folder: where the document changes, regions are read anew.
    """
    before = (system.data_dir / "placement.yaml").read_text()
    model = msgspec.structs.replace(stub_model(SLOW_MODEL), tasks=list(_RESULTS))
    stub = StubBackend(backend_id="slow-0", region="slow", models=[model], behaviour=_answer_slowly)
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(stub):
        regions = yaml.safe_load(before)["regions"]
        backend = {"id": stub.backend_id, "url": stub.url}
        regions.append({"name": stub.region, "pools": [{"backends": [backend]}]})
        try:
            _place(system, config, yaml.safe_dump({"regions": regions}))
            wait_until(lambda: _serves_it(system), what="the slow model is served")
            yield
        finally:
            _place(system, config, before)


def _place(system: System, config: Path, text: str) -> None:
    (system.data_dir / "placement.yaml").write_text(text)
    with (config / "gateway.yaml").open("a") as document:
        document.write("# other regions\n")
    with system.admin() as admin:
        admin.post("/admin/config/reload").raise_for_status()


def _serves_it(system: System) -> bool:
    with system.client() as client:
        return client.get(f"/v1/models/{SLOW_MODEL}").is_success
