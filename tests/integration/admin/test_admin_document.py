"""The operators' OpenAPI document: open to read, and each of its examples is a request."""

from typing import Any

import httpx
import msgspec
import pytest

from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.runtime.store import RuntimeStore
from tests.support.documents import conforms, operations, parameter_examples, resolved
from tests.support.events import make_event

pytestmark = pytest.mark.anyio

_FIRST = (
    "create_operator",
    "create_tenant",
    "create_key",
    "reload_config",
    "replace_config",
    "set_budget",
)
_LAST = ("roll_back_config", "revoke_key", "rotate_operator", "revoke_operator")
# The worker here has no backends and no guards.
_ELSEWHERE = {
    *("reload_models", "get_model_arms", "split_model", "reset_model"),
    *("shadow_model", "end_shadow", "roll_back_model", "try_guard", "list_decisions"),
}
_OF_EVERY_SERVER = {"content-length", "content-type"}


async def test_document_and_page_are_open(admin: httpx.AsyncClient) -> None:
    admin.headers.pop("authorization")

    document = await admin.get("/openapi.json")
    page = await admin.get("/docs")

    assert document.json()["info"]["title"] == "Sluicegate for operators"
    assert document.headers["x-request-id"]
    assert "api-reference" in page.text
    assert (await admin.get("/docs/scalar.js")).status_code == 200


async def test_every_example_is_answered_as_documented(
    admin: httpx.AsyncClient, worker: RuntimeStore, ledger: Ledger
) -> None:
    document = (await admin.get("/openapi.json")).json()
    key = ""

    asked = [one for one in operations(document) if one[2]["operationId"] not in _ELSEWHERE]
    for method, path, operation in sorted(asked, key=_order):
        for content_type, body in _bodies(operation):
            place, query, headers = _parameters(operation)
            if "key" in place:
                place["key"] = key
            if "number" in place:
                place["number"] = _dead_letter(ledger)
            answer = await admin.request(
                method,
                path.format(**place),
                params=query,
                headers=headers | ({"content-type": content_type} if content_type else {}),
                content=body,
            )

            told = resolved(document, operation["responses"].get(str(answer.status_code), {}))
            assert answer.status_code in (200, 201, 202), (path, answer.text)
            assert {n.lower() for n in answer.headers} - _OF_EVERY_SERVER <= {
                n.lower() for n in told["headers"]
            }
            media = answer.headers["content-type"].partition(";")[0]
            # The worker here reports less than a gateway's does.
            if media == "application/json" and operation["operationId"] != "get_cache":
                conforms(document, told["content"][media]["schema"], answer.json())
            if operation["operationId"] == "create_key":
                key = answer.json()["id"]


def _dead_letter(ledger: Ledger) -> int:
    """Add a dead letter that can be replayed; return its number."""
    payload = msgspec.msgpack.encode(make_event(1))
    ledger.recorder.add_dead_letter("log-1", "not an event", payload)
    return ledger.dead_letters.entries(limit=1)[0].number


def _order(named: tuple[str, str, dict[str, Any]]) -> tuple[int, str]:
    name = named[2]["operationId"]
    if name in _FIRST:
        return _FIRST.index(name), name
    return (len(_FIRST) + 1 + _LAST.index(name) if name in _LAST else len(_FIRST)), name


def _bodies(operation: dict[str, Any]) -> list[tuple[str, bytes]]:
    found = []
    for media, content in operation.get("requestBody", {"content": {}})["content"].items():
        for example in content["examples"].values():
            value = example["value"]
            found.append((media, value.encode() if isinstance(value, str) else _json(value)))
    return found or [("", b"")]


def _json(value: object) -> bytes:
    return msgspec.json.encode(value)


def _parameters(operation: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
    """Return the examples of parameters: of the path, the query and headers."""
    return (
        parameter_examples(operation, "path"),
        parameter_examples(operation, "query"),
        parameter_examples(operation, "header"),
    )
