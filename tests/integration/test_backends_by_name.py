"""A worker whose backends are found by a DNS name: who gets work as its addresses change."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testing.certificates import Authority
from testing.raw_http import Connection, post
from testing.stub_backend import StubBackend, answer_when
from testing.waiting import eventually, until
from tests.support.table_resolver import TableResolver
from tests.support.worker import RunningWorker, classify, running_worker

pytestmark = pytest.mark.anyio

OFTEN = {"dns_interval": 0.02, "probe_interval": 0.1, "slow_start": 0.1}


def regions(name: str, *, tls: bool = False) -> list[dict[str, Any]]:
    return [{"name": "eu", "pools": [{"backends": [{"id": "eu", "dns": name, "tls": tls}]}]}]


async def backend_of(connection: Connection, text: str) -> str:
    """Return the backend that answered."""
    await connection.send(post("/v1/classify", classify(text)))
    response = await connection.response()
    assert response.status == 200, response.body
    backend: str = response.json()["results"][0]["backend"]
    return backend


async def backends_of(worker: RunningWorker, count: int, *, name: str) -> Counter[str]:
    async with worker.connect() as connection:
        return Counter([await backend_of(connection, f"{name} {n}") for n in range(count)])


async def test_work_goes_to_every_address_of_the_name_as_they_come_and_go(
    tmp_path: Path, valkey: str
) -> None:
    resolver, gate = TableResolver(backends=["127.0.0.1"]), asyncio.Event()
    names = itertools.count()
    async with (
        StubBackend(backend_id="one") as one,
        StubBackend(backend_id="two", host="127.0.0.2", port=one.port) as two,
        running_worker(
            tmp_path,
            valkey,
            resolver=resolver,
            regions=regions(f"backends:{one.port}"),
            routing=OFTEN,
        ) as worker,
    ):
        alone = await backends_of(worker, 5, name="alone")
        resolver.table["backends"] = ["127.0.0.2", "127.0.0.1"]
        await until(lambda: two.probes > 0)
        await eventually(lambda: both_answer(worker, names))

        two.calls.clear()
        two.behaviour = answer_when(gate)
        async with worker.connect() as connection:
            late = classify(*(f"late {n}" for n in range(64)))
            await connection.send(post("/v1/classify", late))
            await until(lambda: bool(two.calls))
            resolver.table["backends"] = ["127.0.0.1"]
            asked = resolver.asked
            await until(lambda: resolver.asked >= asked + 2)
            left = await backends_of(worker, 20, name="left")
            gate.set()
            response = await connection.response()
        await until(lambda: two.open_connections == 0)

    assert alone == {"one": 5}
    assert left == {"one": 20}
    assert response.status == 200
    assert {each["backend"] for each in response.json()["results"]} == {"one", "two"}


async def both_answer(worker: RunningWorker, names: Iterator[int]) -> bool:
    return set(await backends_of(worker, 8, name=f"both {next(names)}")) == {"one", "two"}


async def test_the_system_resolves_names(tmp_path: Path, valkey: str) -> None:
    async with (
        StubBackend(backend_id="one") as one,
        running_worker(
            tmp_path, valkey, regions=regions(f"localhost:{one.port}"), routing=OFTEN
        ) as worker,
    ):
        answered = await backends_of(worker, 3, name="text")

    assert answered == {"one": 3}


async def test_a_worker_starts_without_a_name_server_and_finds_backends_later(
    tmp_path: Path, valkey: str
) -> None:
    resolver = TableResolver()
    async with (
        StubBackend(backend_id="one") as one,
        running_worker(
            tmp_path,
            valkey,
            resolver=resolver,
            regions=regions(f"backends:{one.port}"),
            routing=OFTEN,
        ) as worker,
    ):
        before = await status_of(worker)
        resolver.table["backends"] = ["127.0.0.1"]
        await eventually(lambda: is_ready(worker))
        figures = worker.metrics()

    assert before == 503
    assert "sluicegate_discovery_names 1.0" in figures


async def status_of(worker: RunningWorker) -> int:
    async with worker.connect() as connection:
        await connection.send(post("/health/ready", None, method="GET"))
        return (await connection.response()).status


async def is_ready(worker: RunningWorker) -> bool:
    return await status_of(worker) == 200


async def test_certificates_are_held_against_the_name_and_not_the_address(
    tmp_path: Path, valkey: str
) -> None:
    authority = Authority(tmp_path / "authority")
    right = authority.issue("right", "backends.example")
    wrong = authority.issue("wrong", "127.0.0.2")
    async with (
        StubBackend(backend_id="one", certificate=right) as one,
        StubBackend(backend_id="two", certificate=wrong, host="127.0.0.2", port=one.port) as two,
        running_worker(
            tmp_path,
            valkey,
            resolver=TableResolver(**{"backends.example": ["127.0.0.1", "127.0.0.2"]}),
            upstream_ca=authority.ca,
            regions=regions(f"backends.example:{one.port}", tls=True),
            routing=OFTEN,
        ) as worker,
    ):
        answered = await backends_of(worker, 5, name="text")

    assert answered == {"one": 5}
    assert not two.calls
