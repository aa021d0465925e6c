"""Operators see what workers sample of guards' decisions, and count other thresholds by it."""

import logging
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest
from redis.asyncio import Redis

from sluicegate.gateway.admin.operator_directory import OperatorDirectory
from sluicegate.gateway.app.decision_publisher import DecisionPublisher
from sluicegate.gateway.auth.keys import hash_key
from sluicegate.gateway.config.document import Document
from sluicegate.gateway.console.console import Console
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.redis.client import connect
from sluicegate.gateway.redis.connect import open_client
from sluicegate.gateway.runtime.runtime import compile_runtime
from sluicegate.gateway.runtime.store import RuntimeStore
from sluicegate.gateway.telemetry.guard_decisions import GuardDecision, RecentDecisions, key_of
from sluicegate.wire.protocol import Call, Done
from testing.raw_http import KEY, Connection, post
from testing.stub_backend import Reply, StubBackend, stub_model
from testing.valkey import Valkey
from testing.waiting import eventually
from tests.support.admin import KEY as ADMIN_KEY, client_of
from tests.support.console import VIEWER_KEY, Viewers, log_in
from tests.support.ledgers import ledger_url
from tests.support.worker import running_worker

pytestmark = pytest.mark.anyio
_OTHER_KEY = "sk-of-a-tenant-that-did-not-agree"
_SECRET = "the secret of a tenant that did not agree"
_SHOWN = "a text that operators may see"
_SCORES = {_SECRET: 0.95, _SHOWN: 0.6}


async def _judge(stub: StubBackend, call: Call, reply: Reply) -> None:
    """Block texts whose score is at least 0.9."""
    outcomes = []
    for index, item in enumerate(call.items):
        score = _SCORES[msgspec.msgpack.decode(item.body)]
        finding = {"detector": "anger", "action": "block", "label": "angry", "score": score}
        found = [finding | {"start": 0, "end": 3}] if score >= 0.9 else []
        result = {
            "verdict": "block" if found else "allow",
            "findings": found,
            "scores": {"anger": {"best": {"angry": score}}},
        }
        outcomes.append(Done(index=index, result=msgspec.json.encode(result), rows=1, tokens=1))
    await reply.send(*outcomes)
    await reply.end(stub.report)


def _guards(threshold: float = 0.9) -> dict[str, Any]:
    detector = {"kind": "classifier", "name": "anger", "model": "mood"}
    chat = {"model": "stub", "detectors": [detector | {"labels": {"angry": threshold}}]}
    return {"chat": chat}


class System(NamedTuple):
    """A worker and an operators' listener on one Valkey."""

    connection: Connection
    admin: httpx.AsyncClient
    redis: Redis
    folder: Path

    async def ask(self, text: str, key: str) -> None:
        """Have a text judged."""
        body = msgspec.json.encode({"input": text})
        await self.connection.send(post("/v1/guard/chat", body, key=key))
        assert (await self.connection.response()).status == 200

    async def decisions(self) -> list[dict[str, Any]]:
        """Return the sampled decisions, by time."""
        response = await self.admin.get("/admin/guards/chat/decisions")
        assert response.status_code == 200, response.text
        found: list[dict[str, Any]] = response.json()
        return found[::-1]

    async def sampled(self, count: int) -> list[dict[str, Any]]:
        """Return the decisions once there are `count`."""

        async def are_there() -> bool:
            return len(await self.decisions()) == count

        await eventually(are_there)
        return await self.decisions()

    async def document(self) -> dict[str, Any]:
        """Return the active document."""
        found: dict[str, Any] = (await self.admin.get("/admin/config")).json()["document"]
        return found

    async def stored(self) -> bytes:
        """Return all that is stored in Redis about decisions."""
        keys = await self.redis.keys(key_of("*"))
        found: list[Any] = [await self.redis.hvals(key) for key in keys]
        return repr(found).encode()


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[System]:
    with Valkey() as valkey, Ledger.create(ledger_url(tmp_path)) as ledger:
        for tenant, key in {"acme": KEY, "other": _OTHER_KEY}.items():
            ledger.accounts.create_tenant(tenant)
            ledger.accounts.create_key(tenant, key_hash=hash_key(key))
        mood = msgspec.structs.replace(stub_model("mood"), labels=["angry"])
        stub = StubBackend(models=[stub_model(), mood])
        stub.behaviour = _judge
        async with (
            stub,
            running_worker(
                tmp_path,
                valkey.url,
                [stub],
                ledger_url=ledger_url(tmp_path),
                own={"admin_key": ADMIN_KEY},
                guards=_guards(),
                decisions={"texts": ["acme"]},
            ) as worker,
            worker.connect() as connection,
        ):
            redis = connect(valkey.url, timeout=60.0)

            def extend(directory: OperatorDirectory) -> Console:
                return Console(settings=worker.settings, directory=directory)

            async with client_of(
                worker.settings, redis, ledger, authenticators=[Viewers()], extend=extend
            ) as admin:
                admin.headers["origin"] = "http://admin"
                published = await admin.post("/admin/config/reload")
                assert published.status_code == 200, published.text
                yield System(connection, admin, redis, tmp_path)
            await redis.aclose()


async def test_no_text_of_a_tenant_that_did_not_agree_appears_anywhere(
    system: System, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    await system.ask(_SECRET, _OTHER_KEY)
    await system.ask(_SHOWN, KEY)

    kept = await system.sampled(2)
    await log_in(system.admin, ADMIN_KEY)
    page = await system.admin.get("/console/guards")

    assert [(one["tenant"], one["verdict"], one.get("text")) for one in kept] == [
        ("other", "block", None),
        ("acme", "allow", _SHOWN),
    ]
    assert kept[0]["length"] == len(_SECRET)
    assert kept[1]["scores"] == {"anger": {"best": {"angry": 0.6}}}
    assert _SHOWN in page.text
    files = [path.read_bytes() for path in system.folder.rglob("*") if path.is_file()]
    for seen in (page.text, caplog.text, str(kept), repr(await system.stored())):
        assert _SECRET not in seen
    for text in (_SECRET, _SHOWN):
        assert not any(text.encode() in found for found in files)
        assert text not in caplog.text


async def test_viewers_see_no_texts(system: System) -> None:
    await system.ask(_SHOWN, KEY)
    await system.sampled(1)
    del system.admin.headers["authorization"]

    response = await system.admin.get(
        "/admin/guards/chat/decisions", headers={"authorization": f"Bearer {VIEWER_KEY}"}
    )
    await log_in(system.admin, VIEWER_KEY)
    page = await system.admin.get("/console/guards")

    (decision,) = response.json()
    assert decision["length"] == len(_SHOWN)
    assert "acme" in page.text
    for seen in (response.text, page.text):
        assert _SHOWN not in seen


async def test_opting_out_removes_kept_texts(system: System) -> None:
    await system.ask(_SHOWN, KEY)
    await system.sampled(1)
    assert _SHOWN.encode() in await system.stored()

    document = await system.document() | {"decisions": {"texts": []}}
    published = await system.admin.put("/admin/config", json=document)

    assert published.status_code == 200, published.text

    async def is_removed() -> bool:
        return _SHOWN.encode() not in await system.stored()

    await eventually(is_removed)
    (decision,) = await system.decisions()
    assert "text" not in decision


async def test_decisions_that_redis_does_not_return_are_not_taken_for_none(
    system: System,
) -> None:
    await system.ask(_SHOWN, KEY)
    await system.sampled(1)
    for key in await system.redis.keys(key_of("*")):
        await system.redis.set(key, "no hash")  # as from a lost node, the reply is an error

    response = await system.admin.get("/admin/guards/chat/decisions")

    assert response.status_code == 503


async def test_a_dry_run_counts_what_other_thresholds_would_decide(system: System) -> None:
    for text in (_SECRET, _SHOWN):
        await system.ask(text, KEY)
    kept = await system.sampled(2)
    document = await system.document() | {"guards": _guards(0.5)}

    answer = await system.admin.put("/admin/config?dry_run=true", json=document)
    await log_in(system.admin, ADMIN_KEY)
    fields = {"text": msgspec.json.encode(document).decode()}
    page = await system.admin.post("/console/configuration/dry-run", data=fields)

    none = {"allow": 0, "flag": 0, "redact": 0, "block": 0}
    assert answer.json()["guards"]["chat"] == {
        "decisions": 2,
        "since": kept[0]["time"],
        "unknown": 0,
        "changed": 1,
        "before": none | {"allow": 1, "block": 1},
        "after": none | {"block": 2},
        "detectors": {"anger": {"before": 1, "after": 2}},
        "uncounted": [],
    }
    assert "1 of 2 verdicts would change." in page.text
    assert (await system.document())["guards"] != document["guards"]


class Publishing(NamedTuple):
    """What a publisher stores, and where."""

    redis: Redis
    runtimes: RuntimeStore
    decisions: RecentDecisions

    async def configure(self, **sections: object) -> None:
        """Make a document with the guard `chat` current."""
        document = msgspec.convert({"guards": _guards()} | sections, Document)
        await self.runtimes.swap(compile_runtime(document, 2))

    def add(self) -> None:
        """Keep a decision with a text."""
        decision = GuardDecision(verdict="allow", text=_SHOWN)
        guards = self.decisions.guards
        kept = self.decisions.prepared([decision], guards, "acme", texts=True)
        self.decisions.add("chat", kept)

    async def stored(self) -> bytes:
        """Return what is stored of the guard."""
        found: Any = await self.redis.hget(key_of("w"), "chat")
        return found or b""

    async def is_stored(self) -> bool:
        """Return whether the text is stored."""
        return _SHOWN.encode() in await self.stored()


@pytest.fixture
async def publishing() -> AsyncIterator[Publishing]:
    with Valkey() as valkey:
        redis = connect(valkey.url, timeout=60.0)
        found = Publishing(redis, RuntimeStore(compile_runtime(Document(), 1)), RecentDecisions())
        async with DecisionPublisher(
            client=open_client(valkey.url, timeout=60.0, slow=60.0),
            worker="w",
            decisions=found.decisions,
            runtimes=found.runtimes,
            interval=0.01,
        ):
            await found.configure(decisions={"texts": ["acme"]})
            found.add()
            await eventually(found.is_stored)
            yield found
        assert not await redis.keys()
        await redis.aclose()


async def test_decisions_expire_and_are_stored_again_if_redis_loses_them(
    publishing: Publishing,
) -> None:
    assert 0 < await publishing.redis.ttl(key_of("w")) <= 20

    await publishing.redis.delete(key_of("w"))

    await eventually(publishing.is_stored)


async def test_unchanged_decisions_are_not_sent_again(publishing: Publishing) -> None:
    async def expiries() -> int:
        found = await publishing.redis.info("commandstats")
        return int(found["cmdstat_expire"]["calls"])

    async def is_kept(calls: int) -> bool:
        return await expiries() > calls

    await eventually(partial(is_kept, await expiries() + 2))

    assert (await publishing.redis.info("commandstats"))["cmdstat_hset"]["calls"] == 1


async def test_texts_that_redis_refuses_to_replace_are_deleted(
    publishing: Publishing, caplog: pytest.LogCaptureFixture
) -> None:
    async def is_deleted() -> bool:
        return not await publishing.redis.keys()

    await publishing.redis.config_set("maxmemory", 1)
    publishing.add()
    await eventually(is_deleted)
    await publishing.redis.config_set("maxmemory", 0)
    await eventually(publishing.is_stored)

    assert [one.getMessage() for one in caplog.records] == [
        "Redis refuses sampled decisions of guards"
    ]


async def test_a_document_without_redis_stores_no_decisions(publishing: Publishing) -> None:
    async def is_deleted() -> bool:
        return not await publishing.redis.keys()

    await publishing.configure(decisions={"texts": ["acme"]}, cache={"redis_enabled": False})
    await eventually(is_deleted)
    await publishing.configure(decisions={"texts": ["acme"]})

    await eventually(publishing.is_stored)
