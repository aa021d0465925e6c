"""Clients of Presidio find entities by a guard, and replace them as Presidio does."""

import hashlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from sluicegate.gateway.types import ItemFailure
from sluicegate.wire.guards import GuardConfig
from sluicegate.wire.protocol import GuardParameters, Task
from tests.support.api import KEY, Api
from tests.support.inference_scene import INFO

pytestmark = pytest.mark.anyio
_DETECTORS = [
    {"kind": "formats", "name": "formats", "formats": ["email", "us_ssn"], "action": "flag"},
    {"kind": "entities", "name": "names", "model": "ner", "labels": {"PER": 0.5, "film title": 0}},
    {"kind": "pattern", "name": "keys", "label": "KEY", "pattern": "sk-[a-z]+"},
    {"kind": "length", "name": "long", "max_characters": 9000},
]
# Of "👩‍🚀 Ada to ada@x.org": the findings of several detectors.
_TEXT = "👩‍🚀 Ada to ada@x.org"
_FINDINGS = [
    {"detector": "names", "label": "PER", "score": 0.75, "start": 4, "end": 7, "model": "ner"},
    {"detector": "names", "label": "PER", "score": 0.5, "start": 4, "end": 6, "model": "ner"},
    {"detector": "formats", "label": "EMAIL", "score": 1.0, "start": 11, "end": 20},
]
_PERSON = {"entity_type": "PERSON", "start": 4, "end": 7, "score": 0.75}
_EMAIL = {"entity_type": "EMAIL_ADDRESS", "start": 11, "end": 20, "score": 1.0}


@pytest.fixture
async def api(anyio_backend: str) -> Api:
    made = Api()
    detectors = msgspec.structs.replace(INFO, name="detectors", tasks=[Task.GUARD])
    made.scene.models.infos["detectors"] = detectors
    found = [one | {"action": "redact"} for one in _FINDINGS]
    made.scene.runner.result = lambda _: msgspec.json.encode(
        {"verdict": "redact", "findings": found}
    )
    guard = {"model": "detectors", "detectors": _DETECTORS, "on_error": "allow"}
    # The fakes list other models on routes without a body than those that requests find.
    made.configure(
        guards={
            "chat": msgspec.convert(guard, GuardConfig),
            "listed": msgspec.convert(guard | {"model": INFO.name}, GuardConfig),
        }
    )
    return made


@pytest.fixture
async def client(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    async with api.client() as opened:
        yield opened


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, [_PERSON, _EMAIL]),
        ({"entities": ["PERSON"]}, [_PERSON]),
        ({"entities": []}, [_PERSON, _EMAIL]),
        ({"score_threshold": 0.8}, [_EMAIL]),
        ({"allow_list": ["ada@x.org", "ada"]}, [_PERSON]),
        ({"correlation_id": "1", "language": "es", "allow_list_match": "exact"}, [_PERSON, _EMAIL]),
    ],
)
async def test_findings_are_entities_in_code_points(
    client: httpx.AsyncClient, asked: dict[str, Any], expected: list[Any]
) -> None:
    response = await client.post("/guard/chat/presidio/analyze", json={"text": _TEXT} | asked)

    assert response.json() == [one | {"analysis_explanation": None} for one in expected]


async def test_a_list_of_texts_is_answered_by_a_list_of_lists(client: httpx.AsyncClient) -> None:
    body = {"text": [_TEXT, _TEXT], "return_decision_process": True, "entities": ["PERSON"]}

    first, second = (await client.post("/guard/chat/presidio/analyze", json=body)).json()

    explanation = first[0].pop("analysis_explanation")
    assert (explanation["recognizer"], explanation["textual_explanation"]) == ("names", "ner")
    assert first == [_PERSON]
    assert second[0]["start"] == 4


async def test_no_detector_blocks_and_so_hides_that_another_one_fails(
    api: Api, client: httpx.AsyncClient
) -> None:
    await client.post("/guard/chat/presidio/analyze", json={"text": "a"})

    asked = api.scene.runner.works[-1].parameters
    detectors = msgspec.msgpack.decode(asked, type=GuardParameters).detectors
    assert [one.action for one in detectors] == ["flag"] * len(_DETECTORS)


async def test_a_text_that_was_not_looked_at_is_an_error(
    api: Api, client: httpx.AsyncClient
) -> None:
    api.scene.runner.failure = ItemFailure(
        status=503, code="upstream_unavailable", detail="no backend", retryable=True
    )

    for text in ("a", ["a", "b"]):
        response = await client.post("/guard/chat/presidio/analyze", json={"text": text})

        assert response.status_code == 503
        assert "no backend" in response.json()["error"]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (
            {"entities": ["PERSON", "IBAN_CODE"]},
            "does not look for `IBAN_CODE`; it looks for EMAIL",
        ),
        ({"ad_hoc_recognizers": [{"name": "zip"}]}, "`ad_hoc_recognizers`"),
        ({"context": ["zip"]}, "`context`"),
        ({"allow_list": ["a"], "allow_list_match": "regex"}, "`exact`"),
    ],
)
async def test_what_a_guard_cannot_look_for_is_refused(
    client: httpx.AsyncClient, asked: dict[str, Any], told: str
) -> None:
    response = await client.post("/guard/chat/presidio/analyze", json={"text": "a"} | asked)

    assert response.status_code == 400
    assert told in response.json()["error"]


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("supportedentities", ["EMAIL_ADDRESS", "FILM_TITLE", "KEY", "LENGTH", "PERSON", "US_SSN"]),
        ("recognizers", ["formats", "names", "keys", "long"]),
        ("anonymizers", ["hash", "keep", "mask", "redact", "replace"]),
    ],
)
async def test_a_guard_is_described(
    client: httpx.AsyncClient, what: str, expected: list[str]
) -> None:
    response = await client.get(f"/guard/listed/presidio/{what}?language=en")

    assert response.json() == expected


@pytest.mark.parametrize(("name", "status"), [("listed", 200), ("chat", 404), ("other", 404)])
async def test_a_guard_without_its_model_is_not_healthy(
    client: httpx.AsyncClient, name: str, status: int
) -> None:
    response = await client.get(f"/guard/{name}/presidio/health")

    assert response.status_code == status


async def test_a_key_may_be_the_password_of_the_base_url(client: httpx.AsyncClient) -> None:
    del client.headers["authorization"]
    url = "/guard/listed/presidio/supportedentities"

    answers = [await client.get(url, auth=("any", key)) for key in (KEY, "sk-wrong")]

    assert [one.status_code for one in answers] == [200, 401]
    assert "error" in answers[1].json()


def _span(entity_type: str, start: int, end: int, score: float = 0.5) -> dict[str, Any]:
    return {"entity_type": entity_type, "start": start, "end": end, "score": score}


@pytest.mark.parametrize(
    ("spans", "anonymizers", "expected"),
    [
        ([(0, 3)], {}, "<A>👩‍🚀 Bob"),
        ([(0, 3), (7, 10)], {"DEFAULT": {"type": "redact"}}, "👩‍🚀 "),
        ([(0, 3)], {"A": {"type": "replace", "new_value": "X"}}, "X👩‍🚀 Bob"),
        ([(0, 3)], {"B": {"type": "redact"}}, "<A>👩‍🚀 Bob"),
        ([(0, 3)], {"A": {"type": "keep"}}, "Ada👩‍🚀 Bob"),
        ([(0, 3)], {"A": {"type": "mask", "masking_char": "#", "chars_to_mask": 2}}, "##a👩‍🚀 Bob"),
        (
            [(7, 10)],
            {"A": {"type": "mask", "masking_char": "*", "chars_to_mask": 2, "from_end": True}},
            "Ada👩‍🚀 B**",
        ),
        ([(7, 10)], {"A": {"type": "mask", "chars_to_mask": 99}}, "Ada👩‍🚀 ***"),
        ([(0, 2), (1, 3)], {}, "<A>👩‍🚀 Bob"),
        ([(0, 3), (3, 6)], {}, "<A><A> Bob"),
        ([(3, 6), (7, 10)], {}, "Ada<A>"),
    ],
)
async def test_entities_are_replaced(
    client: httpx.AsyncClient,
    spans: list[tuple[int, int]],
    anonymizers: dict[str, Any],
    expected: str,
) -> None:
    body = {
        "text": "Ada👩‍🚀 Bob",
        "analyzer_results": [_span("A", *span) for span in spans],
        "anonymizers": anonymizers,
    }

    answer = (await client.post("/guard/chat/presidio/anonymize", json=body)).json()

    assert answer["text"] == expected
    for item in answer["items"]:
        assert expected[item["start"] : item["end"]] == item["text"]


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([("A", 0, 6), ("B", 2, 4)], "<A>6789"),
        ([("A", 0, 6), ("B", 4, 8)], "<A><B>89"),
        ([("A", 2, 4, 0.4), ("B", 2, 4, 0.9)], "01<B>456789"),
    ],
)
async def test_overlapping_entities_leave_nothing_of_their_text(
    client: httpx.AsyncClient, spans: list[Any], expected: str
) -> None:
    body = {"text": "0123456789", "analyzer_results": [_span(*span) for span in spans]}

    answer = (await client.post("/guard/chat/presidio/anonymize", json=body)).json()

    assert answer["text"] == expected


async def test_a_hash_needs_its_salt_to_be_repeated(client: httpx.AsyncClient) -> None:
    salt = "0123456789abcdef"
    texts = []
    for own in ({}, {}, {"salt": salt, "hash_type": "sha512"}):
        how = {"type": "hash"} | own
        body = {"text": "Ada", "analyzer_results": [_span("A", 0, 3)], "anonymizers": {"A": how}}
        answer = await client.post("/guard/chat/presidio/anonymize", json=body)
        texts.append(answer.json()["text"])

    assert texts[0] != texts[1]
    assert texts[2] == hashlib.sha512(f"Ada{salt}".encode()).hexdigest()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"anonymizers": {"A": {"type": "encrypt", "key": "k"}}},
            "no operator `encrypt`; use hash",
        ),
        ({"anonymizers": {"A": {"type": "hash", "salt": "short"}}}, "salt"),
        ({"analyzer_results": [_span("A", 0, 4)]}, "the text has 3 characters"),
        ({"analyzer_results": [_span("A", 2, 2)]}, "from 2 to 2"),
        ({"analyzer_results": [_span("A", -1, 2)]}, "start"),
    ],
)
async def test_what_cannot_be_replaced_is_refused(
    client: httpx.AsyncClient, changes: dict[str, Any], told: str
) -> None:
    body = {"text": "Ada", "analyzer_results": [_span("A", 0, 3)]} | changes

    response = await client.post("/guard/chat/presidio/anonymize", json=body)

    assert response.status_code == 400
    assert told in response.json()["error"]
