"""Tests the product as a customer uses it: demo models, cache headers, explained errors."""

import asyncio
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from sluicegate.backends.model_tools.trials.examples import Example
from sluicegate.backends.model_tools.trials.showing import curl
from sluicegate.bulk.cli import main as bulk
from sluicegate.wire.protocol import Task
from testing.system import DEMO_KEY, System, pretty
from tests.clients.checks import Row
from tests.clients.matrix import run_client, target_of
from tests.clients.slow_region import slow_region

pytestmark = pytest.mark.e2e


def answer(system: System, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    with system.client() as client:
        return client.post(path, json=body, headers=headers)


def results(system: System, path: str, body: dict[str, Any]) -> Any:
    response = answer(system, path, body)
    assert response.status_code == 200, pretty(response)
    return response.json()["results"]


def test_sentiment_tells_praise_from_blame(system: System) -> None:
    body = {"model": "sentiment", "input": ["a gorgeous, witty, seductive movie", "labored gags"]}

    first, second = results(system, "/v1/classify", body)

    assert first["labels"][0]["label"] == "positive"
    assert second["labels"][0]["label"] == "negative"
    assert math.isclose(sum(label["score"] for label in first["labels"]), 1.0, abs_tol=1e-4)


def test_the_command_that_an_import_prints_is_answered(system: System, tmp_path: Path) -> None:
    folder = tmp_path / ".sluicegate"
    folder.mkdir()
    (folder / "gateway-url").symlink_to(system.data_dir / "gateway-url")
    # `up` keeps a key that it generated, but the key of this system is given.
    (folder / "demo-key").write_text(DEMO_KEY)
    example = Example(task=Task.CLASSIFY, items=['it\'s "witty"', "$HOME"], source="card")

    answered = subprocess.check_output(curl(example, "sentiment"), shell=True, cwd=tmp_path)  # noqa: S602 - our own command

    assert len(json.loads(answered)["results"]) == 2


def test_banking_intents_names_the_intent(system: System) -> None:
    body = {"model": "banking-intents", "input": "I lost my card yesterday", "top_k": 3}

    (result,) = results(system, "/v1/classify", body)

    assert len(result["labels"]) == 3
    assert "card" in result["labels"][0]["label"]


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("Good morning, how are you?", "SIMPLE"),
        ("Write a Python function that sorts a list of dates.", "COMPLEX"),
        ("Prove that the square root of 2 is irrational.", "REASONING"),
        ("Good morning! " * 300, "COMPLEX"),
    ],
)
def test_the_router_of_the_demonstration_chooses_by_meaning(
    system: System, text: str, target: str
) -> None:
    question = {"type": "choice", "criteria": dict.fromkeys(["SIMPLE", "COMPLEX", "REASONING"])}
    asked = {"state": text, "questions": {"tier": question}}

    (result,) = results(system, "/v1/route/chat", {"input": text})
    choice = answer(system, "/route/chat/v1/systemone", asked).json()["answers"]["tier"]

    assert (result["target"], choice["choice"]) == (target, target)
    assert ("decided_by" in result) == (target != "SIMPLE")


def test_topics_uses_the_callers_labels(system: System) -> None:
    body = {
        "model": "topics",
        "input": "The striker scored twice in the final minutes of the match.",
        "labels": ["sports", "business", "science and technology"],
    }

    (result,) = results(system, "/v1/zero-shot", body)

    assert result["labels"][0]["label"] == "sports"


def test_topics_chooses_an_option(system: System) -> None:
    item = {"prompt": "I cannot log in to my account.", "choices": ["cooking", "signing in"]}

    (result,) = results(system, "/v1/choose", {"model": "topics", "input": item})

    assert result["choice"] == 1
    assert len(result["scores"]) == 2


def test_minilm_embeds_with_unit_length(system: System) -> None:
    (result,) = results(system, "/v1/embed", {"model": "minilm", "input": "a sentence"})

    assert len(result["embedding"]) == 384
    assert math.isclose(sum(x * x for x in result["embedding"]), 1.0, abs_tol=1e-4)


def test_minilm_puts_the_relevant_document_first(system: System) -> None:
    body = {
        "model": "minilm",
        "query": "How do I reset my card PIN?",
        "documents": ["We are hiring engineers.", "Change your PIN at any cash machine."],
        "return_documents": True,
        "top_n": 1,
    }

    (result,) = results(system, "/v1/rerank", body)

    assert result["index"] == 1
    assert result["document"] == "Change your PIN at any cash machine."


def test_entities_have_offsets_into_the_text(system: System) -> None:
    text = "Angela Merkel visited Paris with Siemens."

    (result,) = results(system, "/v1/entities", {"model": "entities-demo", "input": text})

    assert result["entities"]
    for entity in result["entities"]:
        assert text[entity["start"] : entity["end"]] == entity["text"]


def test_reviewer_runs_its_own_algorithm(system: System) -> None:
    body = {"inputs": ["My card was charged twice and nobody answers, terrible service!"]}

    (result,) = results(system, "/v1/infer/reviewer", body)

    assert result["sentiment"]["label"] == "negative"
    assert result["needs_attention"] is True


def test_one_label_more_computes_one_row(system: System) -> None:
    labels = [f"subject {number}" for number in range(20)]
    body = {"model": "topics", "input": "The striker scored twice.", "labels": labels}

    answer(system, "/v1/zero-shot", body)
    more = answer(system, "/v1/zero-shot", body | {"labels": [*labels, "football cups"]})

    assert more.json()["usage"]["rows"] == 1
    # The text, 20 labels, and the template without any.
    assert more.headers["sluicegate-rows"] == "computed=1, known=22"


def test_a_cascade_is_served(system: System) -> None:
    texts = ["a gorgeous, witty, seductive movie", "it is a film about a man"]

    clear, unclear = results(system, "/v1/classify", {"model": "sentiment-cascade", "input": texts})

    assert clear["labels"][0]["label"] == "positive"
    assert len(unclear["labels"]) == 2


def test_the_same_request_is_a_miss_and_then_a_hit(system: System) -> None:
    body = {"model": "sentiment", "input": "the same request, twice"}

    first = answer(system, "/v1/classify", body)
    second = answer(system, "/v1/classify", body)

    assert "miss" in first.headers["cache-status"]
    assert first.json()["usage"]["computed"] == 1
    assert "hit" in second.headers["cache-status"]
    assert second.json()["usage"]["hit"] == 1
    assert second.json()["results"] == first.json()["results"]
    assert int(second.headers["age"]) >= 0


async def _many(system: System, body: dict[str, Any], count: int) -> list[httpx.Response]:
    async with system.async_client(limits=httpx.Limits(max_connections=count)) as client:
        return await asyncio.gather(*(client.post("/v1/classify", json=body) for _ in range(count)))


@pytest.mark.anyio
async def test_identical_requests_at_once_compute_one_row(system: System) -> None:
    body = {"model": "sentiment", "input": "sixty people asked the very same thing"}

    responses = await _many(system, body, 60)

    assert {response.status_code for response in responses} == {200}
    assert len({response.text.partition('"usage"')[0] for response in responses}) == 1
    assert sum(response.json()["usage"]["rows"] for response in responses) == 1
    assert sum(response.json()["usage"]["computed"] for response in responses) == 1


def test_only_misses_of_a_list_are_computed(system: System) -> None:
    texts = [f"list item {number}" for number in range(5)]
    answer(system, "/v1/classify", {"model": "sentiment", "input": texts[:3]})

    response = answer(system, "/v1/classify", {"model": "sentiment", "input": texts})

    usage = response.json()["usage"]
    assert (usage["hit"], usage["computed"]) == (3, 2)
    assert "fwd=partial" in response.headers["cache-status"]


def test_only_if_cached_does_not_compute(system: System) -> None:
    body = {"model": "sentiment", "input": "never asked before"}
    control = {"cache-control": "only-if-cached"}

    response = answer(system, "/v1/classify", body, **control)

    assert response.status_code == 504
    assert response.json()["code"] == "not_cached"


def test_one_bad_item_fails_alone_when_asked_to_continue(system: System) -> None:
    body = {"model": "sentiment", "input": ["fine text", ""], "on_error": "continue"}

    response = answer(system, "/v1/classify", body)

    fine, bad = response.json()["results"]
    assert fine["labels"]
    assert bad["error"]["code"] == "empty_input"
    assert response.json()["usage"]["failed"] == 1


CLASSIFY = "/v1/classify"
BAD: list[tuple[str, bytes, int, str]] = [
    (CLASSIFY, b"{", 400, "invalid_request"),
    (CLASSIFY, b"[]", 400, "invalid_request"),
    (CLASSIFY, b"\xff\xfe", 400, "invalid_request"),
    (CLASSIFY, b"[" * 60_000, 400, "invalid_request"),
    (CLASSIFY, b"[" * 100_000, 413, "payload_too_large"),
    (CLASSIFY, b'{"model":"sentiment"}', 400, "invalid_request"),
    (CLASSIFY, b'{"model":"sentiment","input":[]}', 400, "invalid_request"),
    (CLASSIFY, b'{"model":"sentiment","input":"x","temperature":1}', 400, "invalid_request"),
    (CLASSIFY, b'{"model":"sentiment","input":"x","top_k":0}', 400, "invalid_request"),
    (CLASSIFY, b'{"model":"nobody","input":"x"}', 404, "model_not_found"),
    (CLASSIFY, b'{"model":"minilm","input":"x"}', 400, "task_not_supported"),
    (CLASSIFY, b'{"model":"sentiment","input":["ok",""]}', 422, "invalid_item"),
    (CLASSIFY, b'{"model":"sentiment","input":"\\ud800"}', 400, "invalid_request"),
    ("/v1/zero-shot", b'{"model":"topics","input":"x","labels":[]}', 422, "invalid_item"),
    ("/v1/zero-shot", b'{"model":"topics","input":"x","labels":["a","a"]}', 422, "invalid_item"),
    ("/v1/embed", b'{"model":"minilm","input":"x","dimensions":385}', 422, "invalid_item"),
    ("/v1/nothing", b"{}", 404, "not_found"),
]


@pytest.mark.parametrize(("path", "body", "status", "code"), BAD)
def test_bad_input_is_told_what_is_wrong(
    system: System, path: str, body: bytes, status: int, code: str
) -> None:
    with system.client() as client:
        response = client.post(path, content=body)

    problem = response.json()
    assert (response.status_code, problem["code"]) == (status, code), pretty(response)
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["x-request-id"]
    assert len(problem["detail"]) > 10


def test_a_text_longer_than_the_model_is_read_up_to_its_length(system: System) -> None:
    """As the published model does; its card says how many tokens that is."""
    start, longer = "word " * 300, "word " * 3000

    short, long = results(system, CLASSIFY, {"model": "sentiment", "input": [start, longer]})

    assert short == long


def test_a_wrong_key_is_refused(system: System) -> None:
    with system.client() as client:
        wrong = {"authorization": "Bearer sk-wrong-wrong-wrong"}
        response = client.post(CLASSIFY, json={}, headers=wrong)

    assert response.status_code == 401
    assert response.headers["www-authenticate"].startswith("Bearer")


def test_another_method_is_refused(system: System) -> None:
    with system.client() as client:
        response = client.get(CLASSIFY)

    assert response.status_code == 405


def test_answers_carry_limits_and_an_id(system: System) -> None:
    response = answer(system, CLASSIFY, {"model": "sentiment", "input": "headers"})

    assert response.headers["ratelimit-policy"]
    assert response.headers["ratelimit"]
    assert response.headers["x-request-id"].startswith("req_")
    assert "no-store" in response.headers["cache-control"]


def test_models_are_listed_with_their_regions(system: System) -> None:
    with system.client() as client:
        listed = client.get("/v1/models").json()["data"]
        one = client.get("/v1/models/banking-intents").json()

    names = {model["name"] for model in listed}
    assert {"sentiment", "banking-intents", "minilm", "topics", "reviewer"} <= names
    assert len(one["labels"]) == 77
    assert one["regions"] == ["eu", "us"]


def test_a_deadline_that_cannot_be_met_is_said(system: System) -> None:
    """Where the time runs out, while the body arrives or later, is a matter of microseconds."""
    body = {"model": "sentiment", "input": "no time at all"}

    response = answer(system, CLASSIFY, body, **{"x-request-timeout": "0.0001"})

    assert (response.status_code, response.json()["code"]) in {
        (504, "deadline_exceeded"),
        (408, "request_timeout"),
    }


def test_an_unmodified_client_passes_every_row_of_the_matrix(system: System) -> None:
    """The one whose packages are here; `make check NAME=clients` runs all of them."""
    with slow_region(system, system.data_dir.parent / "config"):
        lines = run_client("huggingface_hub", Path(sys.executable), system, target_of(system))

    assert [line.text() for line in lines if line.wrong] == []
    assert set(Row) <= {line.row for line in lines}


def test_bulk_jobs_and_requests_share_answers(
    system: System, demo_models: Path, tmp_path: Path
) -> None:
    """What one has computed, the other is given; the job's model answers otherwise."""
    texts = ["computed for a request", "computed for a bulk job"]
    (known,) = results(system, "/v1/embed", {"model": "minilm", "input": texts[0]})
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    cache, state = (
        f"unix://{(system.processes(role)[0].address or '').removeprefix('unix:')}"
        for role in ("valkey-cache", "valkey-state")
    )

    done = CliRunner().invoke(
        bulk,
        [
            *("--models", str(demo_models), "--provider", "paced", "--model", "minilm"),
            *("--task", "embed", "--cache", cache, "--cache-state", state),
            *("--cache-scope", "tenant:demo"),
            *("--cache-secret-file", str(system.data_dir / "secret")),
            *(str(source), str(tmp_path / "out")),
        ],
    )

    assert done.exit_code == 0, done.output
    lines = (tmp_path / "out" / "part-00000-00000.jsonl").read_text().splitlines()
    first, second = map(json.loads, lines)
    assert first["embedding"] == pytest.approx(known["embedding"], abs=1e-7)
    response = answer(system, "/v1/embed", {"model": "minilm", "input": texts[1]}).json()
    assert response["usage"]["hit"] == 1
    assert response["results"][0]["embedding"] == pytest.approx(second["embedding"], abs=1e-7)
