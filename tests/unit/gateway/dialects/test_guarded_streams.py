"""A guard looks at answers that grow, and says what may be sent of them."""

import random
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import pytest

from tests.support.api import Api
from tests.support.guards import NO_BACKEND, finder, guard, guarded_api

pytestmark = pytest.mark.anyio


@pytest.fixture
async def api(anyio_backend: str) -> Api:
    return guarded_api()


@pytest.fixture
async def client(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    async with api.client() as opened:
        yield opened


async def judge(client: httpx.AsyncClient, pieces: Sequence[str]) -> Any:
    response = await client.post("/v1/guard/chat", json={"input": pieces, "pieces": True})
    (result,) = response.json()["results"]
    return result


@pytest.mark.parametrize(
    ("pieces", "first"),
    [
        (["to A", "da"], 0),
        (["to ", "", "A", "da."], 2),
        (["to A", "d", "a, Ada"], 0),
        (["to ", "Bob", " and Ada", ""], 2),
        (["to Ada"], 0),
    ],
)
async def test_a_phrase_over_several_pieces_blocks_from_its_first_piece(
    api: Api, client: httpx.AsyncClient, pieces: list[str], first: int
) -> None:
    api.scene.runner.result = finder("Ada", "block")

    result = await judge(client, pieces)

    assert (result["verdict"], result["blocked_from"]) == ("block", first)
    assert "".join(pieces)[result["findings"][0]["start"] :].startswith("Ada")
    assert "holdback" not in result


async def test_pieces_that_were_not_looked_at_are_blocked_from_the_first(
    api: Api, client: httpx.AsyncClient
) -> None:
    api.scene.runner.failure = NO_BACKEND

    result = await judge(client, ["a", "b"])

    assert (result["verdict"], result["blocked_from"]) == ("block", 0)


@pytest.mark.parametrize(
    ("holdback", "pieces", "held"),
    [
        (None, ["to ", "Bob"], 6),
        (0, ["to ", "Bob"], 0),
        (2, ["to ", "Bob"], 2),
        (9, ["to ", "Bob"], 6),
        (0, ["to Ada"], 7),
        (1, ["to Ada."], 8),
        (2, ["to Ada, so"], 2),
        (None, ["to Ada, so"], 14),
    ],
)
async def test_the_end_is_held_back_and_a_span_that_reaches_into_it(
    api: Api, client: httpx.AsyncClient, holdback: int | None, pieces: list[str], held: int
) -> None:
    api.configure(guards={"chat": guard(holdback=holdback)})
    api.scene.runner.result = finder("Ada", "redact")

    assert (await judge(client, pieces))["holdback"] == held


@pytest.mark.parametrize("route", ["native", "litellm"])
async def test_what_is_sent_never_changes_and_never_has_what_is_redacted(
    api: Api, client: httpx.AsyncClient, route: str
) -> None:
    """Sends texts as LiteLLM does: what is new of the text without its end, after each piece."""
    drawn = random.Random(5)
    api.configure(guards={"chat": guard(holdback=6)})
    api.scene.runner.result = finder("secret", "redact")
    for _ in range(60):
        letters = drawn.choices(["secret", "sec", "ret", "s", " ", "<PER_1>", "<PER_"], k=12)
        text = "".join(letters)
        cuts = sorted(drawn.sample(range(1, len(text)), 4))
        sent = ""
        for end in (*cuts, len(text)):
            if route == "native":
                result = await judge(client, [text[:end]])
                found, held = result.get("text", text[:end]), result["holdback"]
            else:
                body = {"texts": ["", text[:end]], "input_type": "response"}
                path = "/guard/chat/beta/litellm_basic_guardrail_api"
                answer = (await client.post(path, json=body)).json()
                found = answer.get("texts", body["texts"])[1]
                held = answer["stream_holdback_chars"][1]
            assert found.startswith(sent)
            reached = max(len(sent), len(found) - held) if end < len(text) else len(found)
            sent = found[:reached]
            assert "secret" not in sent


async def test_the_placeholders_of_a_growing_text_do_not_depend_on_what_follows(
    api: Api, client: httpx.AsyncClient
) -> None:
    api.scene.runner.result = finder("Ada", "redact")

    first = await judge(client, ["Ada,"])
    later = await judge(client, ["Ada,", " <PER_1> or <PER_2> and Ada"])
    other = await judge(client, ["<PER_1> or Ada"])

    assert first["text"] == "<PER_1>,"
    assert later["text"] == "<PER_1>, <PER_1> or <PER_2> and <PER_1>"
    assert other["text"] == "<PER_1> or <PER_2>"


@pytest.mark.parametrize("body", [{"input": []}, {"input": ["a"], "restore": True}])
async def test_pieces_are_of_a_text_and_not_restored(client: httpx.AsyncClient, body: Any) -> None:
    response = await client.post("/v1/guard/chat", json=body | {"pieces": True})

    assert response.status_code == 400
