"""A worker whose tenant has small limits, and a worker that never reached a backend."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.operations.publishing import Publisher
from sluicegate.gateway.redis.client import connect
from sluicegate.gateway.runtime.control import Control
from sluicegate.gateway.types import Rule
from testing.raw_http import Response, post
from testing.stub_backend import StubBackend, answer_when
from testing.valkey import Valkey
from testing.waiting import WAIT_LIMIT
from tests.support.worker import RunningWorker, classify, running_worker

pytestmark = pytest.mark.anyio
_REQUESTS = Rule(name="hour", unit="requests", capacity=3, window=3600.0)
_ITEMS = Rule(name="items", unit="items", capacity=4, window=3600.0)


@pytest.fixture
async def stub(anyio_backend: str) -> AsyncIterator[StubBackend]:
    async with StubBackend() as running:
        yield running


@pytest.fixture
async def limited(tmp_path: Path, valkey: str, stub: StubBackend) -> AsyncIterator[RunningWorker]:
    async with running_worker(tmp_path, valkey, [stub], rules=(_REQUESTS, _ITEMS)) as running:
        yield running


async def ask(worker: RunningWorker, *texts: str) -> Response:
    async with worker.connect() as connection:
        await connection.send(post("/v1/classify", classify(*texts)))
        return await connection.response()


async def test_a_used_up_limit_says_when_to_come_back(limited: RunningWorker) -> None:
    allowed = [await ask(limited, "a") for _ in range(3)]
    refused = await ask(limited, "a")

    assert [response.status for response in allowed] == [200, 200, 200]
    assert (refused.status, refused.json()["code"]) == (429, "rate_limited")
    assert "`hour` of requests" in refused.json()["detail"]
    assert refused.headers["ratelimit-policy"] == '"hour";q=3;w=3600, "items";q=4;w=3600'
    assert '"hour";r=0;' in refused.headers["ratelimit"]
    assert 1 <= int(refused.headers["retry-after"]) <= 120
    assert int(refused.headers["retry-after-ms"]) > 1000


async def test_more_items_than_the_limit_ever_allows_are_refused_for_good(
    limited: RunningWorker, stub: StubBackend
) -> None:
    refused = await ask(limited, "a", "b", "c", "d", "e")
    smaller = await ask(limited, "a", "b", "c", "d")

    assert (refused.status, refused.json()["code"]) == (429, "rate_limited")
    assert "send fewer items" in refused.json()["detail"]
    assert refused.headers["x-should-retry"] == "false"
    assert "retry-after" not in refused.headers
    assert smaller.status == 200


_TOKENS = Rule(name="tokens", unit="tokens", capacity=40, window=3600.0)
_PLACES = Rule(name="running", unit="concurrent", capacity=1)


async def test_tokens_are_held_for_work_settled_after_it_and_not_charged_for_hits(
    tmp_path: Path, valkey: str, stub: StubBackend
) -> None:
    async with running_worker(tmp_path, valkey, [stub], rules=(_TOKENS,)) as worker:
        # At most 22 tokens of each; the stub says 4.
        computed = [await ask(worker, letter * 19) for letter in "abcdef"]
        hits = [await ask(worker, "a" * 19) for _ in range(5)]
        refused = await ask(worker, "g" * 19)
        impossible = await ask(worker, *(letter * 19 for letter in "hij"))

    assert [one.status for one in computed] == [200] * 5 + [429]
    assert [one.status for one in hits] == [200] * 5
    assert (refused.status, refused.json()["code"]) == (429, "rate_limited")
    assert "`tokens` of tokens" in refused.json()["detail"]
    assert 1 <= int(refused.headers["retry-after"]) <= 120
    assert refused.headers["ratelimit-policy"] == '"tokens";q=40;w=3600'
    assert hits[-1].headers["x-ratelimit-remaining-tokens"] == "20"
    assert (impossible.status, impossible.json()["code"]) == (413, "payload_too_large")


async def test_so_much_work_of_a_tenant_runs_at_a_time_and_no_more(
    tmp_path: Path, valkey: str, stub: StubBackend
) -> None:
    gate = asyncio.Event()
    async with running_worker(tmp_path, valkey, [stub], rules=(_PLACES,)) as worker:
        await ask(worker, "known")
        stub.behaviour = answer_when(gate)
        first = asyncio.create_task(ask(worker, "a"))
        await stub.wait_for(lambda: len(stub.calls) == 2)
        hit, second = await ask(worker, "known"), await ask(worker, "b")
        gate.set()
        answered = await first
        async with asyncio.timeout(60.0):
            while (third := await ask(worker, "b")).status == 429:
                pass  # the place is on its way back

    assert (hit.status, answered.status, third.status) == (200, 200, 200)
    assert (second.status, second.headers["retry-after"]) == (429, "1")


async def test_requests_that_miss_together_take_a_place_each(
    tmp_path: Path, valkey: str, stub: StubBackend
) -> None:
    gate = asyncio.Event()
    stub.behaviour = answer_when(gate)
    places = Rule(name="running", unit="concurrent", capacity=2)
    async with running_worker(tmp_path, valkey, [stub], rules=(places,)) as worker:
        asked = [asyncio.create_task(ask(worker, f"text {number}")) for number in range(6)]
        async with asyncio.timeout(WAIT_LIMIT):
            for _ in range(4):
                await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
                refused = [one for one in asked if one.done()]
                if len(refused) == 4:
                    break
        gate.set()
        answers = [await one for one in asked]

    assert sorted(answer.status for answer in answers) == [200, 200, 429, 429, 429, 429]


async def test_a_models_limit_holds_over_all_and_a_refused_tenant_leaves_it_alone(
    tmp_path: Path, valkey: str, stub: StubBackend
) -> None:
    rows = {"name": "rows", "unit": "rows", "capacity": 5, "window": 3600}
    small = Rule(name="rows_of_tenant", unit="rows", capacity=3, window=3600.0)
    models = {"stub": {"limits": [rows]}}
    async with running_worker(tmp_path, valkey, [stub], rules=(small,), models=models) as worker:
        passed = await ask(worker, "a", "b")
        refused = [await ask(worker, "c", "d") for _ in range(3)]
        rest = await ask(worker, "e")

    assert (passed.status, rest.status) == (200, 200)
    assert {one.status for one in refused} == {429}
    assert "`rows_of_tenant`" in refused[0].json()["detail"]


async def test_a_limit_in_shadow_mode_is_counted_and_not_felt(
    tmp_path: Path, valkey: str, stub: StubBackend
) -> None:
    trial = Rule(name="trial", unit="requests", capacity=2, window=3600.0, shadow=True)
    async with running_worker(tmp_path, valkey, [stub], rules=(trial,)) as worker:
        answers = [await ask(worker, "a") for _ in range(5)]
        metrics = worker.metrics()

    assert {one.status for one in answers} == {200}
    assert all("ratelimit" not in one.headers for one in answers)
    labels = 'decision="shadow_refused",policy="trial"'
    assert f"sluicegate_limit_decisions_total{{{labels}}} 3.0" in metrics


async def test_a_used_up_quota_says_that_trying_again_is_of_no_use(
    tmp_path: Path, valkey: str, stub: StubBackend
) -> None:
    monthly = Rule(name="monthly", unit="items", capacity=2, period="month")
    async with running_worker(tmp_path, valkey, [stub], rules=(monthly,)) as worker:
        answers = [await ask(worker, "a") for _ in range(3)]

    assert [one.status for one in answers] == [200, 200, 429]
    assert "next month" in answers[-1].json()["detail"]
    assert answers[-1].headers["x-should-retry"] == "false"


async def test_a_worker_that_never_reached_a_backend_asks_to_try_again(
    tmp_path: Path, valkey: str, stub: StubBackend
) -> None:
    await stub.stop()
    async with running_worker(tmp_path, valkey, [stub], routing={"probe_interval": 0.06}) as worker:
        refused = await ask(worker, "a")
        await stub.start()
        await stub.wait_for(lambda: stub.probes > 0)
        async with asyncio.timeout(60.0):
            while (answered := await ask(worker, "a")).status == 503:
                pass  # the probe's answer is on its way

    assert (refused.status, refused.json()["code"]) == (503, "upstream_unavailable")
    assert int(refused.headers["retry-after"]) >= 1
    assert answered.status == 200


async def test_a_changed_local_share_holds_in_workers_that_run(
    tmp_path: Path, stub: StubBackend
) -> None:
    rule = Rule(name="hour", unit="requests", capacity=20, window=3600.0)
    limits = {"local_share": 0.1}
    with Valkey() as own:
        async with running_worker(
            tmp_path, own.url, [stub], rules=(rule,), limits=limits
        ) as worker:
            document = worker.settings.config / "gateway.yaml"
            document.write_text(document.read_text().replace('share":0.1', 'share":0.5'))
            redis = connect(own.url, timeout=60.0)
            with Ledger.create(worker.settings.ledger) as ledger:
                changed = await Publisher(
                    control=Control(redis),
                    ledger=ledger,
                    settings=worker.settings,
                    clock=lambda: 0.0,
                    workers_timeout=WAIT_LIMIT,
                ).reload(author="test")
            await redis.aclose()
            own.kill()

            answers = [await ask(worker, "a") for _ in range(20)]

    assert changed.live
    assert [one.status for one in answers].count(200) == 10
