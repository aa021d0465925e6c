"""A classifier's labels become the categories that the document gives them."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from sluicegate.gateway.config.document import ModelConfig
from tests.support.api import NARROW_KEY, Api
from tests.support.documents import conforms, documents
from tests.support.guards import NO_BACKEND

pytestmark = pytest.mark.anyio
_ENTRY = ModelConfig(
    moderation={"toxic": "harassment", "insult": "harassment", "gore": "violence"},
    moderation_threshold=0.4,
)
_LABELS = (
    b'{"labels":[{"label":"toxic","score":0.5},{"label":"fine","score":0.3},'
    b'{"label":"gore","score":0.1},{"label":"insult","score":0.1}]}'
)


@pytest.fixture
async def api(anyio_backend: str) -> Api:
    made = Api()
    made.scene.runner.result = lambda _: _LABELS
    made.configure(models={"sentiment": _ENTRY})
    infos, labels = made.scene.models.infos, ["toxic", "fine", "gore", "insult"]
    infos["sentiment"] = msgspec.structs.replace(infos["sentiment"], labels=labels)
    return made


@pytest.fixture
async def client(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    async with api.client() as opened:
        yield opened


@pytest.mark.parametrize("more", [{"model": "sentiment"}, {}])
@pytest.mark.parametrize("sent", ["a", ["a"], [{"type": "text", "text": "a"}]])
async def test_a_category_has_the_score_of_its_best_label(
    client: httpx.AsyncClient, more: dict[str, str], sent: Any
) -> None:
    response = await client.post("/v1/moderations", json={"input": sent} | more)

    answer = response.json()
    assert answer["id"] == f"modr-{response.headers['x-request-id']}"
    assert answer["results"] == [
        {
            "flagged": True,
            "categories": {"harassment": True, "violence": False},
            "category_scores": {"harassment": 0.5, "violence": 0.1},
            "category_applied_input_types": {"harassment": ["text"], "violence": ["text"]},
        }
    ]
    document = documents()["customers"]
    told = document["paths"]["/v1/moderations"]["post"]["responses"]["200"]
    conforms(document, told["content"]["application/json"]["schema"], answer)


async def test_it_shares_its_answers_with_classify(api: Api, client: httpx.AsyncClient) -> None:
    await client.post("/v1/classify", json={"model": "sentiment", "input": ["a", "b"]})

    answer = await client.post("/v1/moderations", json={"input": ["b", "a"]})

    assert answer.status_code == 200
    assert len(api.scene.runner.computed) == 2


async def test_a_new_document_decides_about_answers_that_are_known(
    api: Api, client: httpx.AsyncClient
) -> None:
    flagged = []
    for threshold in (0.4, 0.4, 0.4, 0.9, 0.9, 0.9):
        api.configure(
            models={
                "sentiment": ModelConfig(
                    moderation={"toxic": "harassment"}, moderation_threshold=threshold
                )
            }
        )
        answer = await client.post("/v1/moderations", json={"input": "a"})
        flagged.append(answer.json()["results"][0]["flagged"])

    assert flagged == [True] * 3 + [False] * 3


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"input": "a", "model": "other"}, 400, "invalid_request"),
        ({"input": "a", "model": "none"}, 404, "model_not_found"),
        ({"input": [{"type": "image_url", "image_url": {}}]}, 400, "invalid_request"),
        ({"input": []}, 400, "invalid_request"),
    ],
)
async def test_what_cannot_be_moderated_is_refused(
    api: Api, client: httpx.AsyncClient, body: Any, status: int, code: str
) -> None:
    infos = api.scene.models.infos
    infos["other"] = infos["sentiment"]

    response = await client.post("/v1/moderations", json=body)

    assert (response.status_code, response.json()["error"]["code"]) == (status, code)


async def test_a_text_that_a_classifier_could_not_judge_is_an_error(
    api: Api, client: httpx.AsyncClient
) -> None:
    api.scene.runner.failure = NO_BACKEND

    response = await client.post("/v1/moderations", json={"model": "sentiment", "input": "a"})

    assert response.status_code == 503


@pytest.mark.parametrize("names", [(), ("sentiment", "other")])
async def test_without_a_model_one_must_be_configured(
    api: Api, client: httpx.AsyncClient, names: tuple[str, ...]
) -> None:
    api.configure(models=dict.fromkeys(names, _ENTRY))

    response = await client.post("/v1/moderations", json={"input": "a"})

    assert response.status_code == 400
    assert "`model` is needed" in response.json()["error"]["message"]


async def test_a_label_that_the_model_does_not_have_judges_nothing(
    api: Api, client: httpx.AsyncClient
) -> None:
    """Its category would have the score 0 for ever, and a text would pass."""
    wrong = msgspec.structs.replace(_ENTRY, moderation={"toxic": "hate", "gory": "violence"})
    api.configure(models={"sentiment": wrong})

    response = await client.post("/v1/moderations", json={"input": "a"})

    assert response.status_code == 400
    assert "`gory`" in response.json()["error"]["message"]
    assert "`models.sentiment.moderation`" in response.json()["error"]["message"]


async def test_labels_that_a_model_loses_are_missed_in_bodies_that_are_known(
    api: Api, client: httpx.AsyncClient
) -> None:
    infos = api.scene.models.infos
    known = await client.post("/v1/moderations", json={"input": "a"})
    infos["sentiment"] = msgspec.structs.replace(infos["sentiment"], labels=["toxic", "insult"])

    later = await client.post("/v1/moderations", json={"input": "a"})

    assert (known.status_code, later.status_code) == (200, 400)
    assert "`gore`" in later.json()["error"]["message"]


async def test_a_model_that_is_served_later_does_not_pass_what_nobody_judged(
    api: Api, client: httpx.AsyncClient
) -> None:
    body = {"input": "a", "model": "later"}
    early = await client.post("/v1/moderations", json=body)
    infos = api.scene.models.infos
    infos["later"] = infos["sentiment"]

    late = await client.post("/v1/moderations", json=body)

    assert (early.status_code, late.status_code) == (404, 400)
    assert "not configured" in late.json()["error"]["message"]


async def test_a_key_does_not_learn_which_models_there_are(
    api: Api, client: httpx.AsyncClient
) -> None:
    api.scene.models.infos["plain"] = api.scene.models.infos["sentiment"]
    narrow = {"authorization": f"Bearer {NARROW_KEY}"}

    statuses = [
        (await client.post("/v1/moderations", json=body, headers=narrow)).status_code
        for body in ({"input": "a", "model": name} for name in ("sentiment", "plain", "none"))
    ]

    assert statuses == [403] * 3
