"""Gateways for language models ask guards in the ways that their documents state."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from sluicegate.wire.guards import Action
from tests.support.api import Api
from tests.support.dialects import documented
from tests.support.guards import NO_BACKEND, finder, guard, guarded_api

pytestmark = pytest.mark.anyio
_LITELLM = "beta/litellm_basic_guardrail_api"
_CALL = {"type": "function", "id": "1", "function": {"name": "mail", "arguments": '{"to":"Ada"}'}}


@pytest.fixture
async def api(anyio_backend: str) -> Api:
    made = guarded_api()
    made.configure(guards={"chat": guard(message="Not here.")})
    return made


@pytest.fixture
async def client(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    async with api.client() as opened:
        yield opened


async def ask(client: httpx.AsyncClient, hook: str, body: Any) -> Any:
    """Return the answer of a hook, which has the form that the OpenAPI document states."""
    response = await client.post(f"/guard/chat/{hook}", json=body)
    assert response.status_code == 200, response.text
    documented(f"/guard/{{name}}/{hook}", response.json())
    return response.json()


def before(**body: Any) -> dict[str, Any]:
    """Return what Portkey sends before it asks a language model (1.15.2)."""
    return {
        "request": {"json": body, "text": "", "isStreamingRequest": False, "isTransformed": False},
        "response": {"json": {}, "text": "", "statusCode": None, "isTransformed": False},
        "provider": "openai",
        "requestType": "chatComplete",
        "metadata": {"user": "u"},
        "eventType": "beforeRequestHook",
    }


def after(body: Any, *, streams: bool = False) -> dict[str, Any]:
    """Return what Portkey sends after a language model has answered."""
    sent = before(model="m", messages=[{"role": "user", "content": "Ada"}])
    sent["request"]["isStreamingRequest"] = streams
    sent["response"] = {"json": body, "text": "", "statusCode": 200, "isTransformed": False}
    return sent | {"eventType": "afterRequestHook"}


def messages(*contents: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": one} for one in contents]} | more


@pytest.mark.parametrize(
    ("action", "verdict"), [("flag", "flag"), ("redact", "redact"), ("block", "block")]
)
async def test_portkey_is_told_what_to_do_with_a_request(
    api: Api, client: httpx.AsyncClient, action: Action, verdict: str
) -> None:
    api.scene.runner.result = finder("Ada", action)
    body = messages("to Ada.", [{"type": "text", "text": "so Ada!"}], model="gpt", n=1)

    answer = await ask(client, "portkey", before(**body))

    reason = "Not here." if action == "block" else ""
    expected: dict[str, Any] = {
        "verdict": action != "block",
        "data": {"verdict": verdict, "reason": reason, "detectors": ["words"]},
    }
    if action == "redact":
        redacted = messages("to <PER_1>.", [{"type": "text", "text": "so <PER_1>!"}])
        expected["transformedData"] = {"request": {"json": body | redacted}}
    assert answer == expected


async def test_portkey_is_told_what_to_do_with_an_answer(
    api: Api, client: httpx.AsyncClient
) -> None:
    api.scene.runner.result = finder("Ada", "redact")
    choice = {"message": {"content": "It is Ada"}, "logprobs": {"content": [{"token": "Ada"}]}}
    body = {"id": "1", "choices": [choice]}

    answer = await ask(client, "portkey", after(body))

    choices = [{"message": {"content": "It is <PER_1>"}, "logprobs": None}]
    assert answer["verdict"] is True
    assert answer["transformedData"] == {"response": {"json": {"id": "1", "choices": choices}}}


async def test_an_answer_that_portkey_streams_is_blocked_instead_of_redacted(
    api: Api, client: httpx.AsyncClient
) -> None:
    api.scene.runner.result = finder("Ada", "redact")
    body = {"choices": [{"message": {"content": "It is Ada"}}]}

    answer = await ask(client, "portkey", after(body, streams=True))

    assert answer["verdict"] is False
    assert "transformedData" not in answer


_ANTHROPIC = {
    "system": [{"type": "text", "text": "one"}],
    "tools": [{"name": "five"}],
    "messages": [
        {"role": "user", "content": "two"},
        {
            "role": "assistant",
            "content": [{"type": "server_tool_use", "name": "f", "input": {"a": 1}}],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "content": [{"type": "text", "text": "three"}]}],
        },
    ],
}


@pytest.mark.parametrize(
    ("body", "looked_at"),
    [
        (
            messages("one", None, tools=[{"function": {"name": "two"}}]),
            ["one", "function\nname\ntwo"],
        ),
        ({"messages": [{"content": None, "tool_calls": [_CALL]}]}, ["mail\nto\nAda"]),
        ({"messages": [{"function_call": {"name": "f", "arguments": "1"}}]}, ["f\n1"]),
        (
            {"messages": [{"tool_calls": [{"custom": {"name": "f", "input": "one"}}, None]}]},
            ["name\nf\ninput\none"],
        ),
        ({"prompt": ["one", "two"], "suffix": "three"}, ["one", "two", "three"]),
        ({"input": "one", "model": "text-embedding"}, ["one"]),
        (_ANTHROPIC, ["one", "two", "three", "f\na\n1", "name\nfive"]),
        (None, [""]),
    ],
)
async def test_all_texts_of_a_request_are_looked_at(
    api: Api, client: httpx.AsyncClient, body: Any, looked_at: list[str]
) -> None:
    sent = before()
    sent["request"]["json"] = body

    answer = await ask(client, "portkey", sent)

    assert [*map(msgspec.msgpack.decode, api.scene.runner.computed)] == looked_at
    assert answer["verdict"] is True


@pytest.mark.parametrize(("action", "passes"), [("flag", True), ("redact", False)])
async def test_a_tool_call_of_an_answer_is_blocked_where_a_text_would_be_redacted(
    api: Api, client: httpx.AsyncClient, action: Action, *, passes: bool
) -> None:
    api.scene.runner.result = finder("Ada", action)
    message = {"role": "assistant", "tool_calls": [_CALL]}

    answer = await ask(client, "portkey", after({"choices": [{"message": message}]}))

    assert answer["verdict"] is passes


@pytest.mark.parametrize(("name", "passes"), [("mail", True), ("mail_Ada", False)])
async def test_portkey_is_told_to_redact_the_calls_of_earlier_answers(
    api: Api, client: httpx.AsyncClient, name: str, *, passes: bool
) -> None:
    api.scene.runner.result = finder("Ada", "redact")
    call = {"function": _CALL["function"] | {"name": name}}  # type: ignore[operator]

    answer = await ask(client, "portkey", before(messages=[{"tool_calls": [call]}]))

    assert answer["verdict"] is passes
    if passes:
        (message,) = answer["transformedData"]["request"]["json"]["messages"]
        assert message["tool_calls"][0]["function"]["arguments"] == '{"to":"<PER_1>"}'


@pytest.mark.parametrize(("on_error", "passes"), [("block", False), ("allow", True)])
@pytest.mark.parametrize(
    "body",
    [
        {"prompt": [[464, 2068]]},
        messages([{"type": "image_url", "image_url": {"url": "https://x.org/a.png"}}]),
        messages([{"type": "text", "text": "a"}, {"type": "input_audio", "input_audio": {}}]),
    ],
)
async def test_token_ids_images_and_audio_count_as_texts_that_were_not_looked_at(
    api: Api, client: httpx.AsyncClient, body: Any, on_error: str, *, passes: bool
) -> None:
    api.configure(guards={"chat": guard(on_error=on_error)})

    answer = await ask(client, "portkey", before(**body))

    assert answer["verdict"] is passes


async def test_what_was_not_looked_at_is_counted(api: Api, client: httpx.AsyncClient) -> None:
    image = {"type": "image_url", "image_url": {"url": "https://x.org/a.png"}}

    await ask(client, "portkey", before(**messages([image])))

    api.metrics.flush()
    counted = [
        api.registry.get_sample_value("sluicegate_guard_failed_texts_total", {"guard": "chat"}),
        api.registry.get_sample_value(
            "sluicegate_guard_texts_total", {"guard": "chat", "verdict": "block"}
        ),
    ]
    assert counted == [1, 1]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "tool_result", "content": "attack"},
        {"type": "document", "source": {"type": "text", "data": "attack"}},
        {"type": "other", "other": "attack"},
    ],
)
async def test_unknown_parts_are_looked_at_even_if_they_may_pass(
    api: Api, client: httpx.AsyncClient, part: Any
) -> None:
    api.configure(guards={"chat": guard(on_error="allow")})
    api.scene.runner.result = finder("attack", "block")

    answer = await ask(client, "portkey", before(**messages([part])))

    assert answer["verdict"] is False


async def test_a_body_that_is_nested_too_deeply_is_refused(client: httpx.AsyncClient) -> None:
    nested = '[{"content":' * 900 + '"Ada"' + "}]" * 900
    body = f'{{"eventType":"beforeRequestHook","request":{{"json":{{"messages":{nested}}}}}}}'

    response = await client.post("/guard/chat/portkey", content=body)

    assert response.status_code == 400


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("flag", {"reason": "flag: words"}),
        (
            "redact",
            {"reason": "redact: words", "body": messages("to <PER_1>.", "and <PER_1>!", "Bob")},
        ),
        ("block", {"reason": "block: words", "body": "Not here.", "status_code": 403}),
    ],
)
async def test_agentgateway_is_told_what_to_do_with_a_request(
    api: Api, client: httpx.AsyncClient, action: Action, expected: Any
) -> None:
    api.scene.runner.result = finder("Ada", action)
    body = {"body": messages("to Ada.", "and Ada!", "Bob")}

    assert await ask(client, "agentgateway/request", body) == {"action": expected}


async def test_agentgateway_is_told_what_to_do_with_an_answer(
    api: Api, client: httpx.AsyncClient
) -> None:
    api.scene.runner.result = finder("Ada", "redact")
    sent = {"body": {"choices": [{"message": {"role": "assistant", "content": "It is Ada"}}]}}

    answer = await ask(client, "agentgateway/response", sent)

    (choice,) = answer["action"]["body"]["choices"]
    assert choice == {"message": {"role": "assistant", "content": "It is <PER_1>"}}


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("flag", {"jailbreak": False, "score": 0.0}),
        ("redact", {"jailbreak": True, "score": 0.9}),
        ("block", {"jailbreak": True, "score": 0.9}),
    ],
)
async def test_nemo_guardrails_is_told_whether_to_block(
    api: Api, client: httpx.AsyncClient, action: Action, expected: Any
) -> None:
    api.scene.runner.result = finder("Ada", action)

    assert await ask(client, "classify", {"input": "to Ada"}) == expected


_HOOKS = {
    "portkey": before(**messages("a")),
    "agentgateway/request": {"body": messages("a")},
    "agentgateway/response": {"body": {"choices": [{"message": {"role": "r", "content": "a"}}]}},
    "classify": {"input": "a"},
    _LITELLM: {"texts": ["a"]},
}
_BLOCKED = ({"verdict": False}, {"jailbreak": True}, {"action": "BLOCKED"})


@pytest.mark.parametrize("hook", _HOOKS)
@pytest.mark.parametrize("on_error", ["block", "allow"])
async def test_every_hook_blocks_what_was_not_looked_at_if_the_guard_says_so(
    api: Api, client: httpx.AsyncClient, hook: str, on_error: str
) -> None:
    api.configure(guards={"chat": guard(on_error=on_error)})
    api.scene.runner.failure = NO_BACKEND

    answer = await ask(client, hook, _HOOKS[hook])

    blocks = any(answer.items() >= one.items() for one in _BLOCKED)
    if isinstance(answer.get("action"), dict):
        blocks = answer["action"].get("status_code") == 403
    assert blocks is (on_error == "block")


@pytest.mark.parametrize("hook", _HOOKS)
async def test_every_hook_is_below_a_guard(client: httpx.AsyncClient, hook: str) -> None:
    response = await client.post(f"/guard/other/{hook}", json=_HOOKS[hook])

    assert response.status_code == 404


@pytest.mark.parametrize(
    ("action", "flagged"), [("flag", False), ("redact", True), ("block", True)]
)
async def test_a_guard_moderates_with_its_detectors(
    api: Api, client: httpx.AsyncClient, action: Action, *, flagged: bool
) -> None:
    api.scene.runner.result = finder("Ada", action)

    answer = await client.post("/v1/moderations", json={"model": "chat", "input": ["Ada", "Bob"]})

    documented("/v1/moderations", answer.json())
    assert answer.json()["model"] == "chat"
    found, clean = answer.json()["results"]
    assert found == {
        "flagged": flagged,
        "categories": {"words": True},
        "category_scores": {"words": 0.9},
        "category_applied_input_types": {"words": ["text"]},
    }
    assert (clean["flagged"], clean["categories"]) == (False, {"words": False})


@pytest.mark.parametrize(("on_error", "flagged"), [("block", True), ("allow", False)])
async def test_a_text_that_a_guard_could_not_moderate_is_flagged(
    api: Api, client: httpx.AsyncClient, on_error: str, *, flagged: bool
) -> None:
    api.configure(guards={"chat": guard(on_error=on_error)})
    api.scene.runner.failure = NO_BACKEND

    answer = await client.post("/v1/moderations", json={"model": "chat", "input": "a"})

    (result,) = answer.json()["results"]
    assert result["flagged"] is flagged
    assert result["categories"] == {"words": False, "error": True}
