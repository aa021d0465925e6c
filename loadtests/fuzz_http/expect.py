"""States the expected response of a request, derived from the request alone.

It uses none of the gateway's code: the rules are those of RFC 9110, RFC 9112 and docs/api.md.
"""

import json
from collections.abc import Callable
from typing import Any  # Any: JSON

import msgspec

OK, CONTINUE, NO_CONTENT, NOT_MODIFIED, OVERLOADED = 200, 100, 204, 304, 503
# Codes of 503, which the error of an item has in place of a status.
_BUSY = frozenset({"overloaded", "upstream_unavailable"})
LENIENT = frozenset(
    {200, 400, 401, 403, 404, 405, 408, 411, 413, 414, 415, 417, 422, 431, 501, 505}
)
"""What a request of which nothing is known may end with: no 500, and nobody gave up."""


class ExpectedResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The expected response to one request."""

    name: str
    """The kind of request."""
    statuses: frozenset[int]
    """What may come; where 200 may, so may 503, which a run counts and bounds."""
    scope: str = ""
    """Whose answers may be in it."""
    texts: tuple[str, ...] | None = None
    """What it must answer with 200, in this order; `None` where that is not known."""
    continues: bool = True
    """Whether single items may fail: its body says `on_error: continue`, or is not known."""
    to_head: bool = False
    may_close: bool = False
    """Whether the server may close the connection after it."""
    must_close: bool = False
    may_be_silent: bool = False
    """Whether the server may close the connection in its place."""
    is_inference: bool = True
    check: Callable[["Response"], int] | None = None
    """Judges all of the response in place of what is said here, as `judge` does."""


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed response; header names in lower case."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes


class UnexpectedResponse(Exception):
    """The response differs from the expected one."""


def judge(expect: ExpectedResponse, response: Response) -> int:
    """Compare `response` with `expect`; return its status, or 503 where items of it were refused.

    Raises:
        UnexpectedResponse: it differs.
    """
    status = response.status
    if expect.check is not None:
        return expect.check(response)
    # A machine that is busy otherwise has too little left for what would be answered else.
    is_refused = status == OVERLOADED and OK in expect.statuses
    if status not in expect.statuses and not is_refused:
        raise UnexpectedResponse(f"{expect.name}: {status} is none of {sorted(expect.statuses)}")
    if not response.headers.get(b"x-request-id"):
        raise UnexpectedResponse(f"{expect.name}: {status} without an X-Request-Id")
    if expect.to_head:
        return status
    if status >= 400:
        _judge_problem(expect, response)
    elif expect.is_inference and status == OK and _judge_results(expect, response):
        return OVERLOADED
    return status


def _judge_problem(expect: ExpectedResponse, response: Response) -> None:
    if not response.headers.get(b"content-type", b"").startswith(b"application/problem+json"):
        raise UnexpectedResponse(f"{expect.name}: {response.status} is no problem")
    problem = _json(expect, response.body)
    if problem.get("status") != response.status or not problem.get("code"):
        raise UnexpectedResponse(f"{expect.name}: the problem says another status, or no code")


def _judge_results(expect: ExpectedResponse, response: Response) -> bool:
    """Return whether items were refused, as a busy machine may where the request goes on."""
    if expect.texts is not None and len(expect.texts) == 1:  # the commonest, and so the cheapest
        only = b'"results":[{"labels":[{"label":%b,"score":1.0}]}]'
        if only % msgspec.json.encode(f"{expect.scope}|{expect.texts[0]}") in response.body:
            return False
    results = _json(expect, response.body)["results"]
    if expect.texts is not None and len(results) != len(expect.texts):
        raise UnexpectedResponse(f"{expect.name}: {len(results)} results of {len(expect.texts)}")
    for index, result in enumerate(results):
        if "error" in result:
            if not expect.continues or result["error"]["code"] not in _BUSY:
                raise UnexpectedResponse(f"{expect.name}: an item failed: {result['error']}")
            continue
        labels = [one["label"] for one in result.get("labels", ())]
        begin = f"{expect.scope}|"
        wanted = None if expect.texts is None else [begin + expect.texts[index]]
        is_own = bool(labels) and all(label.startswith(begin) for label in labels)
        if labels != wanted if wanted else not is_own:
            raise UnexpectedResponse(
                f"{expect.name}: a crossed answer, {labels} in place of {wanted or begin}"
            )
    return any("error" in result for result in results)


def _json(expect: ExpectedResponse, body: bytes) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(body)
    except ValueError as error:
        raise UnexpectedResponse(f"{expect.name}: the body is no JSON") from error
    return found
