"""A guard of the document judges texts, fails closed, and redacts what can be restored."""

import random
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import httpx
import msgspec
import pytest

from sluicegate import AsyncSluicegate
from sluicegate.gateway.dialects.guards.redaction import MarkedSpan, Placeholders
from sluicegate.gateway.telemetry.guard_decisions import GuardDecision
from sluicegate.gateway.types import ItemFailure
from sluicegate.wire.protocol import GuardParameters, Task
from testing.waiting import eventually
from tests.support.api import KEY, Api
from tests.support.guards import NO_BACKEND, finder, guard, guarded_api
from tests.support.inference_scene import INFO

pytestmark = pytest.mark.anyio
_FOUND = (
    b'{"verdict":"%b","findings":[{"detector":"names","action":"%b","label":"PER","score":0.9,'
    b'"start":3,"end":6}]}'
)
# Of twelve scripts, with emoji, combining characters and text from right to left.
_ALPHABETS = (
    "abc déf",
    "где жил",
    "αβγ δέ",
    "אבג דה",
    "ابت ثج",
    "हिन्दी",
    "ไทยกำ",
    "中文字符",
    "にほん語",
    "한글한글",
    "ქართული",
    "👩‍👩‍👧🏽e\u0301<_1>",
)


@pytest.fixture
async def api(anyio_backend: str) -> Api:
    return guarded_api()


@pytest.fixture
async def client(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    async with api.client() as opened:
        yield opened


async def test_a_text_without_findings_is_allowed(api: Api, client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/guard/chat", json={"input": ["a", "b"]})

    answer = response.json()
    assert answer["results"] == [{"verdict": "allow", "findings": []}] * 2
    assert (answer["guard"], answer["model"], answer["usage"]["items"]) == ("chat", "detectors", 2)
    work = api.scene.runner.works[-1]
    assert work.task is Task.GUARD
    assert not work.truncate
    sent = msgspec.msgpack.decode(work.parameters, type=GuardParameters)
    assert sent.detectors == guard().detectors


@pytest.mark.parametrize(("restore", "originals"), [(True, {"<PER_1>": "Ada"}), (False, None)])
async def test_a_span_is_redacted_and_can_be_restored(
    api: Api, client: httpx.AsyncClient, *, restore: bool, originals: Any
) -> None:
    api.scene.runner.result = lambda _: _FOUND % (b"redact", b"redact")

    response = await client.post(
        "/v1/guard/chat", json={"input": ["to Ada.", "so Ada!"], "restore": restore}
    )

    answer = response.json()
    assert [one["text"] for one in answer["results"]] == ["to <PER_1>.", "so <PER_1>!"]
    assert answer.get("placeholders") == originals


async def test_a_blocked_text_has_the_message_and_no_redacted_text(
    api: Api, client: httpx.AsyncClient
) -> None:
    api.configure(guards={"chat": guard(message="Not here.")})
    api.scene.runner.result = lambda _: _FOUND % (b"block", b"block")

    (result,) = (await client.post("/v1/guard/chat", json={"input": "to Ada."})).json()["results"]

    assert (result["verdict"], result["message"]) == ("block", "Not here.")
    assert "text" not in result


@pytest.mark.parametrize("on_error", ["block", "allow"])
async def test_a_text_that_was_not_looked_at_gets_the_verdict_of_the_configuration(
    api: Api, client: httpx.AsyncClient, on_error: str
) -> None:
    api.configure(guards={"chat": guard(on_error=on_error)})
    api.scene.runner.failure = NO_BACKEND

    response = await client.post("/v1/guard/chat", json={"input": ["a", "b"]})

    assert response.status_code == 200
    error = {"code": "upstream_unavailable", "detail": "no backend"}
    for result in response.json()["results"]:
        assert result == {"verdict": on_error, "findings": [], "error": error}
    (event,) = api.events.events
    assert (event.usage.items, event.usage.failed) == (2, 2)


async def test_a_change_of_the_guard_makes_old_verdicts_void(
    api: Api, client: httpx.AsyncClient
) -> None:
    verdicts: list[str] = []
    for verdict in (b"block", b"allow"):
        result = _FOUND % (verdict, b"flag")
        api.scene.runner.result = partial(_constant, result)
        api.configure(guards={"chat": guard(overlap=len(verdicts))})
        for _ in range(3):
            answer = (await client.post("/v1/guard/chat", json={"input": "to Ada."})).json()
            verdicts.append(answer["results"][0]["verdict"])

    assert verdicts == ["block"] * 3 + ["allow"] * 3


@pytest.mark.parametrize(
    ("verdict", "asked", "expected"),
    [
        (b"allow", {"texts": ["a"]}, {"action": "NONE"}),
        (b"flag", {"texts": ["a"]}, {"action": "NONE"}),
        (b"allow", {"images": ["https://x.org/a.png"]}, {"action": "NONE"}),
        (
            b"redact",
            {"texts": ["to Ada.", "so Ada!"]},
            {"action": "GUARDRAIL_INTERVENED", "texts": ["to <PER_1>.", "so <PER_1>!"]},
        ),
        (b"block", {"texts": ["a"]}, {"action": "BLOCKED", "blocked_reason": "Not here."}),
        (
            b"redact",
            {"tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "to Ada."}}]},
            {"action": "BLOCKED", "blocked_reason": "Not here."},
        ),
        (b"redact", {"tools": [{"type": "function"}]}, {"action": "NONE"}),
        (
            b"block",
            {"tools": [{"type": "function"}]},
            {"action": "BLOCKED", "blocked_reason": "Not here."},
        ),
    ],
)
async def test_litellm_is_told_what_to_do(
    api: Api, client: httpx.AsyncClient, verdict: bytes, asked: dict[str, Any], expected: Any
) -> None:
    api.configure(guards={"chat": guard(message="Not here.")})
    api.scene.runner.result = partial(
        _constant, _FOUND % (verdict, verdict.replace(b"allow", b"flag"))
    )
    body = {"input_type": "request", "request_data": {}, "litellm_call_id": "1"} | asked

    answer = await client.post("/guard/chat/beta/litellm_basic_guardrail_api", json=body)

    assert answer.json() == expected


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (r'{"body":"hello\nbadword"}', "f\nbody\nhello\nbadword"),
        (r'{"key":"\u0073k-1","city":"M\u00fcnchen"}', "f\nkey\nsk-1\ncity\nMünchen"),
        ('{"card":4111111111111111,"sum":1.50}', "f\ncard\n4111111111111111\nsum\n1.50"),
        ('{"a":"x","a":[true,null,{"b":"y"}]}', "f\na\nx\na\nb\ny"),
        (r'{"a":"ba\ud800d"}', "f\na\nbad"),
        ('{"a": "no end', 'f\n{"a": "no end'),
        ("[" * 100_000, "f\n" + "[" * 100_000),
        ("", "f"),
    ],
)
async def test_the_arguments_of_a_call_are_read_as_the_tool_reads_them(
    api: Api, client: httpx.AsyncClient, arguments: str, text: str
) -> None:
    call = {"id": "1", "function": {"name": "f", "arguments": arguments}}

    await client.post(
        "/guard/chat/beta/litellm_basic_guardrail_api", json={"texts": ["a"], "tool_calls": [call]}
    )

    assert [*map(msgspec.msgpack.decode, api.scene.runner.computed)] == ["a", text]


async def test_a_call_of_a_custom_tool_is_looked_at(api: Api, client: httpx.AsyncClient) -> None:
    call = {"type": "custom", "custom": {"name": "f", "input": "badword"}}

    await client.post("/guard/chat/beta/litellm_basic_guardrail_api", json={"tool_calls": [call]})

    (text,) = map(msgspec.msgpack.decode, api.scene.runner.computed)
    assert text.splitlines() == ["type", "custom", "custom", "name", "f", "input", "badword"]


async def test_all_strings_of_the_definition_of_a_tool_are_looked_at(
    api: Api, client: httpx.AsyncClient
) -> None:
    limit = {"description": "How many", "enum": [1, 2.5, None], "default": False}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"limit": limit}}}

    await client.post("/guard/chat/beta/litellm_basic_guardrail_api", json={"tools": [tool]})

    (text,) = map(msgspec.msgpack.decode, api.scene.runner.computed)
    assert text.split("\n") == [
        *("type", "function", "function", "name", "f", "parameters", "limit"),
        *("description", "How many", "enum", "1", "2.5", "default"),
    ]


async def test_litellm_is_told_to_block_what_was_not_looked_at(
    api: Api, client: httpx.AsyncClient
) -> None:
    api.configure(guards={"chat": guard(message="Not here.")})
    api.scene.runner.failure = ItemFailure(status=504, code="deadline_exceeded", detail="late")

    answer = await client.post(
        "/guard/chat/beta/litellm_basic_guardrail_api", json={"texts": ["a", "b"]}
    )

    assert answer.json()["action"] == "BLOCKED"
    assert "could not be looked at" in answer.json()["blocked_reason"]


async def test_the_python_client_reads_verdicts(api: Api, client: httpx.AsyncClient) -> None:
    api.scene.runner.result = lambda _: _FOUND % (b"redact", b"redact")

    answer = await AsyncSluicegate("http://api", key=KEY, http=client).guard(
        "chat", ["to Ada."], restore=True
    )

    (result,) = answer.results
    assert (result.verdict, result.text) == ("redact", "to <PER_1>.")
    assert (result.findings[0].label, result.findings[0].end) == ("PER", 6)
    assert (answer.guard, answer.placeholders) == ("chat", {"<PER_1>": "Ada"})
    assert answer.request_id.startswith("req_")


def counted(api: Api, metric: str, **labels: str) -> float | None:
    api.metrics.flush()
    return api.registry.get_sample_value(f"sluicegate_guard_{metric}_total", labels)


@pytest.mark.parametrize(
    ("path", "field"),
    [("/v1/guard/chat", "input"), ("/guard/chat/beta/litellm_basic_guardrail_api", "texts")],
)
async def test_every_hook_counts_verdicts_and_findings(
    api: Api, client: httpx.AsyncClient, path: str, field: str
) -> None:
    api.scene.runner.result = lambda _: _FOUND % (b"redact", b"redact")

    for texts in (["to Ada.", "so Ada!"], ["to Ada."]):  # the last one is in memory
        await client.post(path, json={field: texts})

    assert counted(api, "texts", guard="chat", verdict="redact") == 3
    assert counted(api, "findings", guard="chat", detector="names", action="redact") == 3
    assert counted(api, "failed_texts", guard="chat") is None


async def test_texts_that_were_not_looked_at_are_counted_with_their_verdict(
    api: Api, client: httpx.AsyncClient
) -> None:
    api.configure(guards={"chat": guard(on_error="allow")})
    api.scene.runner.failure = ItemFailure(status=504, code="deadline_exceeded", detail="late")

    await client.post("/v1/guard/chat", json={"input": ["a", "b"]})

    assert counted(api, "failed_texts", guard="chat") == 2
    assert counted(api, "texts", guard="chat", verdict="allow") == 2


async def test_what_a_block_hides_from_the_verdict_is_told_and_counted(
    api: Api, client: httpx.AsyncClient
) -> None:
    api.configure(guards={"chat": guard(message="Not here.")})
    sample(api)
    failed = b'"error":{"code":"model_failed","detail":"broken"}}'
    api.scene.runner.result = partial(
        _constant, (_FOUND % (b"block", b"block")).removesuffix(b"}") + b"," + failed
    )

    answer = (await client.post("/v1/guard/chat", json={"input": "to Ada."})).json()
    hook = "/guard/chat/beta/litellm_basic_guardrail_api"
    told = (await client.post(hook, json={"texts": ["to Ada!"]})).json()

    (result,) = answer["results"]
    assert (result["verdict"], result["message"]) == ("block", "Not here.")
    assert result["error"] == {"code": "model_failed", "detail": "broken"}
    assert told["blocked_reason"] == "Not here."
    assert counted(api, "failed_texts", guard="chat") == 2
    assert counted(api, "findings", guard="chat", detector="names", action="block") == 2
    assert [one.error for one in sampled(api)] == ["model_failed"] * 2


def _constant(result: bytes, _: bytes) -> bytes:
    return result


_SCORES = b',"scores":{"names":{"best":{"PER":0.9}}}}'


@pytest.mark.parametrize(
    ("path", "field"),
    [("/v1/guard/chat", "input"), ("/guard/chat/beta/litellm_basic_guardrail_api", "texts")],
)
@pytest.mark.parametrize(("agreed", "text"), [((), {}), (("acme",), {"text": "to Ada."})])
async def test_a_decision_is_kept_with_its_text_only_if_the_tenant_agreed(
    api: Api, client: httpx.AsyncClient, path: str, field: str, *, agreed: Any, text: Any
) -> None:
    sample(api, *agreed)
    api.scene.runner.result = lambda _: (_FOUND % (b"flag", b"flag"))[:-1] + _SCORES

    await client.post(path, json={field: ["to Ada."]})

    (decision,) = sampled(api)
    assert msgspec.to_builtins(decision) == text | {
        "verdict": "flag",
        "findings": [{"detector": "names", "label": "PER", "score": 0.9, "length": 3}],
        "scores": {"names": {"best": {"PER": 0.9}}},
        "tenant": "acme",
        "time": decision.time,
        "revision": INFO.revision,
        "length": 7,
    }


def sample(api: Api, *agreed: str) -> None:
    """Follow the document, as a worker does."""
    api.metrics.decisions.follow(api.runtimes.current.document.guards, agreed)


def sampled(api: Api) -> list[GuardDecision]:
    found = api.metrics.decisions.of("chat")
    return [] if found is None else found.decisions


async def test_of_a_long_request_one_text_of_each_verdict_is_kept(
    api: Api, client: httpx.AsyncClient
) -> None:
    sample(api)
    api.scene.runner.result = lambda item: (
        finder("film", "block") if b"bad" in item else finder("film", "flag")
    )(item)
    texts = ["a", *["a film"] * 5, "a bad film", "e"]

    await client.post("/v1/guard/chat", json={"input": texts})

    assert sorted(one.verdict for one in sampled(api)) == ["allow", "block", "flag"]


async def test_each_text_of_a_chat_can_be_kept(api: Api, client: httpx.AsyncClient) -> None:
    sample(api, "acme")

    async def are_kept() -> bool:
        await client.post("/v1/guard/chat", json={"input": ["system", "user"]})
        return {one.text for one in sampled(api)} == {"system", "user"}

    await eventually(are_kept)


async def test_no_text_is_kept_of_a_request_that_must_not_be_stored(
    api: Api, client: httpx.AsyncClient
) -> None:
    sample(api, "acme")
    body = {"input": "secret"}

    await client.post("/v1/guard/chat", json=body, headers={"cache-control": "no-store"})

    assert [(one.length, one.text) for one in sampled(api)] == [(6, "")]


async def test_scores_that_cannot_be_read_are_left_out(api: Api, client: httpx.AsyncClient) -> None:
    sample(api)
    api.scene.runner.result = lambda _: b'{"verdict":"allow","findings":[],"scores":5}'

    response = await client.post("/v1/guard/chat", json={"input": "a"})

    assert response.status_code == 200
    assert [one.scores for one in sampled(api)] == [None]


async def test_verdicts_of_an_earlier_document_are_not_kept(
    api: Api, client: httpx.AsyncClient
) -> None:
    sample(api)
    api.configure(guards={"chat": guard()})

    await client.post("/v1/guard/chat", json={"input": "a"})

    assert sampled(api) == []


async def test_an_unknown_guard_is_not_found(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/guard/other", json={"input": "a"})

    assert (response.status_code, response.json()["code"]) == (404, "not_found")


def test_a_placeholder_of_any_text_is_not_used_again() -> None:
    placeholders = Placeholders(["to Ada", "<<PER_1> or <PER_2>", "<PER_4"])

    found = [placeholders.redact(name, [MarkedSpan(0, 3, "per")]) for name in ("Ada", "Bob")]

    assert found == ["<PER_3>", "<PER_4>"]


def test_redacted_texts_are_restored_in_any_script() -> None:
    drawn = random.Random(7)
    for _ in range(10_000):
        letters = [drawn.choice(_ALPHABETS) for _ in range(drawn.randrange(1, 9))]
        text = "".join(drawn.choice((" ", "", "<PER_1>")) + one for one in letters)
        spans = []
        for _ in range(drawn.randrange(5)):
            start = drawn.randrange(len(text))
            end = drawn.randrange(start, len(text) + 1)
            spans.append(MarkedSpan(start, end, drawn.choice(("PER", "e-mail", "名"))))
        placeholders = Placeholders([text])

        redacted = placeholders.redact(text, spans)

        for name, original in placeholders.originals.items():
            assert name not in text
            redacted = redacted.replace(name, original)
        assert redacted == text
