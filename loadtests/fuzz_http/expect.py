"""States the expected response of a request, derived from the request alone.

It uses none of the gateway's code: the rules are from RFC 9110, RFC 9112 and docs/api.md.
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
"""The statuses of a request about which nothing is known: no 500, and no timeout."""


class ExpectedResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The expected response to one request."""

    name: str
    """The kind of request."""
    statuses: frozenset[int]
    """The right statuses. If 200 is right, so is 503: a run counts and bounds those."""
    scope: str = ""
    """Whose answers may be in it."""
    texts: tuple[str, ...] | None = None
    """The texts that 200 answers, in this order; `None` where they are not known."""
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
    """Judges the whole response in place of the other fields, and returns its status."""


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
    # A busy machine refuses requests that it would answer otherwise.
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
