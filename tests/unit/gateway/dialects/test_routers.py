"""A router of the document chooses a target for each text, and says why."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from sluicegate import AsyncSluicegate
from sluicegate.gateway.types import ItemFailure
from sluicegate.wire.guards import RouterConfig
from sluicegate.wire.protocol import GuardParameters, Task
from tests.support.api import KEY, Api
from tests.support.inference_scene import INFO

pytestmark = pytest.mark.anyio
_LINE = "\nClassify this message:\n"
_TIERS = ["SIMPLE", "COMPLEX", "REASONING"]


def router(**changes: Any) -> RouterConfig:
    declared = {
        "model": "detectors",
        "detectors": [
            {"kind": "length", "name": "long", "max_characters": 100, "action": "block"},
            {
                "kind": "examples",
                "name": "asks",
                "model": "minilm",
                "examples": {"code": ["Write code."], "proof": ["Prove it."]},
                "threshold": 0.5,
            },
        ],
        "rules": [
            {"detector": "asks", "label": "proof", "target": "REASONING"},
            {"detector": "asks", "label": "code", "target": "COMPLEX"},
            {"detector": "long", "target": "COMPLEX"},
        ],
        "default": "SIMPLE",
    }
    return msgspec.convert(declared | changes, RouterConfig)


def found(detector: str, label: str, score: float, start: int = 0) -> dict[str, Any]:
    """Return a finding as the backend writes it."""
    span = {"start": start, "end": start + 3}
    return {"detector": detector, "action": "flag", "label": label, "score": score} | span


@pytest.fixture
async def api(anyio_backend: str) -> Api:
    made = Api()
    made.scene.models.infos["detectors"] = msgspec.structs.replace(
        INFO, name="detectors", tasks=[Task.GUARD]
    )
    made.configure(routers={"chat": router()})
    return made


@pytest.fixture
async def client(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    async with api.client() as opened:
        yield opened


def find(api: Api, *findings: dict[str, Any]) -> None:
    """Let the backend find this in every text."""
    result = msgspec.json.encode({"verdict": "flag", "findings": findings})
    api.scene.runner.result = lambda _: result


async def route(client: httpx.AsyncClient, text: str = "a") -> Any:
    response = await client.post("/v1/route/chat", json={"input": text})
    assert response.status_code == 200, response.text
    (result,) = response.json()["results"]
    return result


@pytest.mark.parametrize(
    ("findings", "target", "decisive"),
    [
        ([], "SIMPLE", None),
        ([found("asks", "other", 0.9)], "SIMPLE", None),
        ([found("long", "LENGTH", 1.0)], "COMPLEX", 0),
        ([found("long", "LENGTH", 1.0), found("asks", "proof", 0.6)], "REASONING", 1),
        ([found("asks", "code", 0.6), found("asks", "code", 0.8, start=5)], "COMPLEX", 1),
    ],
)
async def test_the_first_rule_with_a_finding_decides(
    api: Api,
    client: httpx.AsyncClient,
    findings: list[dict[str, Any]],
    target: str,
    decisive: int | None,
) -> None:
    find(api, *findings)

    result = await route(client)

    assert result.pop("decided_by", None) == (None if decisive is None else findings[decisive])
    assert result == {"target": target, "findings": list(findings)}


async def test_the_python_client_reads_targets(api: Api, client: httpx.AsyncClient) -> None:
    find(api, found("asks", "code", 0.8))

    answer = await AsyncSluicegate("http://api", key=KEY, http=client).route("chat", ["a"])

    (result,) = answer.results
    assert (answer.router, result.target, len(result.findings)) == ("chat", "COMPLEX", 1)
    assert result.decided_by == result.findings[0]
    assert result.decided_by.label == "code"


async def test_a_router_asks_its_model_for_findings_only(
    api: Api, client: httpx.AsyncClient
) -> None:
    find(api)

    answer = (await client.post("/v1/route/chat", json={"input": ["a", "b", "a"]})).json()

    assert (answer["router"], answer["model"], len(answer["results"])) == ("chat", "detectors", 3)
    assert (answer["usage"]["items"], answer["usage"]["computed"]) == (3, 2)
    work = api.scene.runner.works[-1]
    sent = msgspec.msgpack.decode(work.parameters, type=GuardParameters)
    assert [(one.name, one.action) for one in sent.detectors] == [
        ("long", "flag"),
        ("asks", "flag"),
    ]
    assert not sent.with_scores
    assert (work.task, work.truncate) == (Task.GUARD, False)


async def test_in_shadow_mode_every_text_gets_one_target(
    api: Api, client: httpx.AsyncClient
) -> None:
    api.configure(routers={"chat": router(shadow="FIXED")})
    find(api, found("asks", "proof", 0.6))

    result = await route(client)

    assert (result["target"], result["chosen"]) == ("FIXED", "REASONING")
    assert result["decided_by"]["label"] == "proof"


@pytest.mark.parametrize(
    ("changes", "target", "chosen"),
    [
        ({}, "SIMPLE", None),
        ({"on_error": "SAFE"}, "SAFE", None),
        ({"on_error": "SAFE", "shadow": "FIXED"}, "FIXED", "SAFE"),
    ],
)
async def test_a_text_that_was_not_looked_at_has_a_target_and_an_error(
    api: Api,
    client: httpx.AsyncClient,
    changes: dict[str, str],
    target: str,
    chosen: str | None,
) -> None:
    api.configure(routers={"chat": router(**changes)})
    api.scene.runner.failure = ItemFailure(status=503, code="overloaded", detail="busy")

    result = await route(client)

    assert (result["target"], result.get("chosen"), result["findings"]) == (target, chosen, [])
    assert result["error"] == {"code": "overloaded", "detail": "busy"}


async def test_targets_and_failures_are_counted(api: Api, client: httpx.AsyncClient) -> None:
    find(api)
    await client.post("/v1/route/chat", json={"input": ["a", "b"]})
    api.scene.runner.failure = ItemFailure(status=503, code="overloaded", detail="busy")
    await client.post("/v1/route/chat", json={"input": "c"})

    api.metrics.flush()
    counted = [
        sample.value
        for metric in api.registry.collect()
        for sample in metric.samples
        if sample.name == "sluicegate_router_texts_total"
    ]
    failed = api.registry.get_sample_value(
        "sluicegate_router_failed_texts_total", {"router": "chat"}
    )
    assert sum(counted) == 3
    assert failed == 1


@pytest.mark.parametrize("path", ["/v1/route/other", "/route/other/v1/systemone"])
async def test_an_unknown_router_is_not_found(client: httpx.AsyncClient, path: str) -> None:
    response = await client.post(path, json={"input": "a"})

    assert (response.status_code, response.json()["code"]) == (404, "not_found")


def asked(state: Any = "a", **changes: Any) -> dict[str, Any]:
    """Return what LiteLLM asks a classifier."""
    question = {
        "type": "choice",
        "instructions": "Which tier?",
        "criteria": dict.fromkeys(_TIERS, "a description"),
    }
    return {"model": "any", "state": state, "questions": {"tier": question | changes}}


@pytest.mark.parametrize(
    ("findings", "choice", "confidence"),
    [([], "SIMPLE", 0.0), ([found("asks", "proof", 0.625)], "REASONING", 0.625)],
)
async def test_a_choice_is_the_target(
    api: Api,
    client: httpx.AsyncClient,
    findings: list[dict[str, Any]],
    choice: str,
    confidence: float,
) -> None:
    find(api, *findings)

    response = await client.post("/route/chat/v1/systemone", json=asked())

    answer = response.json()
    assert answer["answers"]["tier"] == {
        "type": "choice",
        "choice": choice,
        "probabilities": {tier: float(tier == choice) for tier in _TIERS},
        "confidence": confidence,
    }
    assert (answer["model"], answer["usage"]["output_tokens"]) == ("detectors", 0)


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("Hello", "Hello"),
        (f"{_LINE}Hello\nyou", "Hello\nyou"),
        ("Classify this message:\nHello", "Classify this message:\nHello"),
        (f"\nCaller system prompt, quoted as task context:\nBe kind.\n{_LINE}Hi", "Hi"),
        (
            f"\nRecent conversation (context only, do not classify these):\n{_LINE}x\n{_LINE}Hi",
            f"x\n{_LINE}Hi",
        ),
        (f"\nConversation so far: ~9 tokens\n{_LINE}Hi", "Hi"),
        ({"messages": [{"content": "Hé"}], "n": 2}, '{"messages":[{"content":"Hé"}],"n":2}'),
    ],
)
async def test_the_router_reads_the_last_text_of_what_litellm_sends(
    api: Api, client: httpx.AsyncClient, state: Any, text: str
) -> None:
    find(api)

    await client.post("/route/chat/v1/systemone", json=asked(state))

    assert [*map(msgspec.msgpack.decode, api.scene.runner.computed)] == [text]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (asked(criteria={"SIMPLE": "", "REASONING": ""}), "lacks `COMPLEX`"),
        (asked(type="score"), "`$.questions[...].type`"),
        (asked() | {"questions": {}}, "exactly one question"),
        (
            asked() | {"questions": {"a": asked()["questions"]["tier"]} | asked()["questions"]},
            "exactly one",
        ),
        (asked() | {"state": 7}, "state"),
        ({"state": "a"}, "questions"),
    ],
)
async def test_a_question_that_a_router_cannot_answer_is_refused(
    client: httpx.AsyncClient, body: dict[str, Any], said: str
) -> None:
    response = await client.post("/route/chat/v1/systemone", json=body)

    assert (response.status_code, response.json()["code"]) == (400, "invalid_request")
    assert said in response.text
