"""The event of a request says where it was answered, and how its caller named it."""

from pathlib import Path

import pytest

from testing.raw_http import post
from testing.stub_backend import StubBackend
from tests.support.events import events_in
from tests.support.worker import classify, running_worker

pytestmark = pytest.mark.anyio


async def test_an_event_names_the_backends_region_and_the_callers_id(
    tmp_path: Path, valkey: str
) -> None:
    async with (
        StubBackend(backend_id="us-1", region="us") as stub,
        running_worker(tmp_path, valkey, [stub]) as worker,
        worker.connect() as connection,
    ):
        for name in ("order-1", "order-2"):
            request = post("/v1/classify", classify("a"), headers={"x-client-request-id": name})
            await connection.send(request)
            assert (await connection.response()).status == 200

    computed, hit = events_in(worker.settings.events_dir)
    assert (computed.client_id, computed.backend_region) == ("order-1", "us")
    assert (hit.client_id, hit.backend_region, hit.usage.hit) == ("order-2", "", 1)
