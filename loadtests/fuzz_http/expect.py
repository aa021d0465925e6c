"""States the expected response of a request, derived from the request alone.

The rules are from RFC 9110, RFC 9112 and docs/api.md. None of the gateway's code is used.
"""

from collections.abc import Callable, Collection
from typing import Any  # Any: JSON

import msgspec

from testing.raw_http import Response

OVERLOADED = 503
# Error codes of 503. An item that failed has such a code instead of a status.
_BUSY = frozenset({"overloaded", "upstream_unavailable"})


class ExpectedResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The expected response to one request."""

    name: str
    """The kind of request."""
    statuses: Collection[int]
    """The right statuses. If 200 is right, 503 is right too, because a busy system may refuse a
    request. Each run bounds the number of refusals."""
    scope: str = ""
    """The scope of the caller, whose results the response may contain."""
    texts: tuple[str, ...] | None = None
    """The texts that a 200 answers, in this order; `None` if they are not known."""
    continues: bool = True
    """Whether single items may fail: the body is unknown or says `on_error: continue`."""
    is_many: bool = False
    """Whether any number of such responses may come until the server closes the connection."""
    to_head: bool = False
    may_close: bool = False
    """Whether the server may close the connection after this response."""
    must_close: bool = False
    may_be_silent: bool = False
    """Whether the server may close the connection instead of responding."""
    is_inference: bool = False
    """Whether a 200 has results."""
    check: Callable[[Response], int] | None = None
    """Judges the whole response and returns its status. If this is set, the other fields are
    ignored."""


class UnexpectedResponse(Exception):
    """The response differs from the expected one."""


def judge(expect: ExpectedResponse, response: Response) -> int:
    """Compare `response` with `expect`; return its status, or 503 if some items were refused.

    Raises:
        UnexpectedResponse: the response is not the expected one.
    """
    if expect.check is not None:
        return expect.check(response)
    try:
        wrong = _wrong(expect, response)
        if not wrong and response.status == 200 and expect.is_inference and not expect.to_head:
            results = response.json()["results"]
            wrong = _wrong_results(expect, results)
            if any("error" in result for result in results) and not wrong:
                return OVERLOADED
    except msgspec.DecodeError:
        wrong = f"the body is no JSON: {response.body[:300]!r}"
    if wrong:
        raise UnexpectedResponse(f"{expect.name}: {wrong}")
    return response.status


def _wrong(expect: ExpectedResponse, response: Response) -> str:
    """Return what is wrong with a response apart from its results; empty if nothing is."""
    status, headers = response.status, response.headers
    # A busy machine refuses requests that it would otherwise answer.
    is_refused = status == OVERLOADED and 200 in expect.statuses
    if status not in expect.statuses and not is_refused:
        return f"{status} is none of {sorted(expect.statuses)}"
    if not headers.get("x-request-id"):
        return f"{status} without an X-Request-Id"
    if status >= 400 and not expect.to_head:
        if not headers.get("content-type", "").startswith("application/problem+json"):
            return f"{status} is no problem"
        problem = response.json()
        if problem.get("status") != status or not problem.get("code"):
            return "the problem says another status, or no code"
    return ""


def _wrong_results(expect: ExpectedResponse, results: list[Any]) -> str:
    """Return what is wrong with the results.

    A refused item is not wrong, because a busy machine may refuse items.
    """
    if expect.texts is not None and len(results) != len(expect.texts):
        return f"{len(results)} results of {len(expect.texts)}"
    begin = f"{expect.scope}|"
    for index, result in enumerate(results):
        if "error" in result:
            if not expect.continues or result["error"]["code"] not in _BUSY:
                return f"an item failed: {result['error']}"
            continue
        # The first of two labels contains scope and text.
        label = next((one["label"] for one in result.get("labels", ())), "")
        wanted = begin if expect.texts is None else begin + expect.texts[index]
        if label != wanted and (expect.texts is not None or not label.startswith(begin)):
            return f"a crossed answer, {label} in place of {wanted}"
    return ""
