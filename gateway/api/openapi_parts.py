"""Defines the parts of an OpenAPI document that types lack: operations, headers and problems."""

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any

import msgspec

from sluicegate.gateway.errors import (
    AuthenticationFailed,
    ConfigurationError,
    GatewayError,
    InternalError,
    InvalidItem,
    InvalidRequest,
    Overloaded,
    RequestTimeout,
)
from sluicegate.gateway.http.problem_details import MEDIA_TYPE, PROBLEMS, ErrorFormat

Json = dict[str, Any]  # an OpenAPI document is free-form JSON
PROBLEM_JSON = MEDIA_TYPE.decode()
PROBLEM: Json = {"$ref": "#/components/schemas/Problem"}
_OK, _TOO_MANY, _UNAVAILABLE = 200, 429, 503
_EXAMPLE_ID = "req_1f0c5a9e7d3b2c4800000000a7"
_UNITS = ("requests", "items", "rows", "tokens")

# A head that is too large, an unsupported transfer coding or version of HTTP.
_OF_HTTP = (431, 501, 505)


class Kind(StrEnum):
    """Selects the headers that every response of a route has."""

    INFERENCE = "inference"
    LIMITED = "limited"
    PLAIN = "plain"


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a body: its type or schema, and an example that can be sent."""

    type: Any = None
    schema: Json | None = None
    media: str = "application/json"
    summary: str = ""
    example: Any = None


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a route and method; missing parts come from the handler.

    A handler has its own as `opt["operation"]`; others are listed in tables.
    """

    id: str
    summary: str
    tag: str
    kind: Kind = Kind.PLAIN
    errors: tuple[type[GatewayError], ...] = ()
    """The errors it may return beside `ON_EVERY_ROUTE`."""
    error_format: ErrorFormat = PROBLEMS
    """How it writes them."""
    body: tuple[Content, ...] = ()
    is_body_required: bool = True
    answers: Mapping[int, tuple[Content, ...]] = {}
    """Bodies of the responses by status; several where the caller chooses the media type."""
    headers: tuple[str, ...] = ()
    """Headers of a successful response beside those of its kind."""
    parameters: tuple[Json, ...] = ()
    """Parameters that are not in the signature of the handler."""
    about: Mapping[str, Json] = {}
    """Bounds, descriptions and examples of the parameters in the signature."""
    is_public: bool = False
    """No key is needed; a handler says it by its own `public`."""


def request_header(name: str, description: str, schema: Json, example: object = None) -> Json:
    """Return an optional header of requests, as a parameter of an operation."""
    parameter = {
        "name": name,
        "in": "header",
        "required": False,
        "description": description,
        "schema": schema,
    }
    return parameter if example is None else parameter | {"example": example}


TIMEOUT_HEADER = request_header(
    "X-Request-Timeout",
    "Seconds the request may take, up to the configured maximum.",
    {"type": "number", "exclusiveMinimum": 0},
    2.5,
)
# Without an example: the page of the documentation would send it with every request.
IDEMPOTENCY_HEADER = request_header(
    "Idempotency-Key",
    "A request that is sent again with this key is billed and answered once; new for each request.",
    {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
)
MOMENT: Json = {
    "description": "A date, or a time of RFC 3339; without a zone it is UTC.",
    "schema": {"anyOf": [{"type": "string", "format": form} for form in ("date", "date-time")]},
    "example": "2026-11-01",
}
"""The part that says of a parameter that it is a moment."""


def header_components() -> Json:
    """Return every header that an answer may have, by its name."""
    return {name: {"description": text, "schema": schema} for name, text, schema in _headers()}


def header_references(status: int, kind: Kind, more: Iterable[str] = ()) -> Json:
    """Return the headers of an answer with `status` on a route of `kind`."""
    names = ["X-Request-Id", "X-Client-Request-Id", "Cache-Control"]
    if status == AuthenticationFailed.status:
        names.append("WWW-Authenticate")
    if status in (_TOO_MANY, _UNAVAILABLE):
        names += ["Retry-After", "retry-after-ms"]
    if status == _TOO_MANY:
        names.append("x-should-retry")
    if kind is Kind.INFERENCE:
        names += ["Cache-Status", "Server-Timing"]
        names += ["Age", "Sluicegate-Rows"] if status == _OK else []
    if kind is not Kind.PLAIN:
        names += ["RateLimit", "RateLimit-Policy", *map(_limit_header, _LIMIT_HEADERS)]
    return {name: {"$ref": f"#/components/headers/{name}"} for name in (*names, *more)}


def problem_responses(
    errors: Iterable[type[GatewayError]], kind: Kind, written: ErrorFormat, schema: Json
) -> tuple[dict[str, Json], Json]:
    """Return references to the responses for `errors` by status, and those responses by name.

    `written` is how the route writes them, and `schema` that of what it writes.
    """
    by_status: dict[int, list[type[GatewayError]]] = {}
    for error in dict.fromkeys(errors):
        statuses = {written.status(error_example(error))}
        if error in ON_EVERY_ROUTE:
            statuses.add(error.status)
        for status in statuses:
            by_status.setdefault(status, []).append(error)
    dialect = "" if written is PROBLEMS else type(written).__name__.removesuffix("Format")
    references: dict[str, Json] = {}
    responses: Json = {}
    for status, kinds in sorted(by_status.items()):
        ordered = sorted(kinds, key=lambda error: error.code)
        name = dialect + kind.title() + "Or".join(error.__name__ for error in ordered)
        references[str(status)] = {"$ref": f"#/components/responses/{name}"}
        responses[name] = _response(status, ordered, kind, written, schema)
    return references, responses


def all_errors(kind: type[GatewayError] = GatewayError) -> Iterator[type[GatewayError]]:
    """Yield every class of error."""
    yield kind
    for below in kind.__subclasses__():
        yield from all_errors(below)


ON_EVERY_ROUTE: tuple[type[GatewayError], ...] = (
    *(InvalidRequest, RequestTimeout, InternalError, Overloaded),
    *(error for error in all_errors() if error.status in _OF_HTTP),
)
"""The errors of the HTTP server itself: malformed, too slow, internal, too many connections."""


def codes() -> set[str]:
    """Return the codes of all errors."""
    return {error.code for error in all_errors()}


def error_example(error: type[GatewayError]) -> GatewayError:
    """Return an error of that class."""
    detail = _first_line(error)
    if issubclass(error, InvalidItem):
        return error(f"Item 1: {detail}", index=1, item_code="empty_input")
    if issubclass(error, ConfigurationError):
        return error(detail, file="models.yaml", line=3, field="models.sentiment.cache_ttl")
    return error(detail)


def problem_example(error: type[GatewayError], written: ErrorFormat = PROBLEMS) -> Json:
    """Return an error as a caller sees it."""
    decoded: Json = msgspec.json.decode(written.encode(error_example(error), _EXAMPLE_ID))
    return decoded


def _response(
    status: int,
    errors: list[type[GatewayError]],
    kind: Kind,
    written: ErrorFormat,
    schema: Json,
) -> Json:
    content: Json = {}
    for form, shape in ((PROBLEMS, PROBLEM), (written, schema)):
        # What the server itself refuses is a problem on every route.
        told = [
            error
            for error in errors
            if form.status(error_example(error)) == status
            and (form is written or error in ON_EVERY_ROUTE)
        ]
        if told:
            examples = {
                error.code: {"summary": error.title, "value": problem_example(error, form)}
                for error in told
            }
            content[form.media] = {"schema": shape, "examples": examples}
    return {
        "description": " ".join(f"`{error.code}`: {_first_line(error)}" for error in errors),
        "headers": header_references(status, kind),
        "content": content,
    }


def _first_line(error: type[GatewayError]) -> str:
    return (error.__doc__ or error.title).strip().partition("\n")[0]


_LIMIT_HEADERS = [(part, unit) for unit in _UNITS for part in ("limit", "remaining", "reset")]


def _limit_header(name: tuple[str, str]) -> str:
    part, unit = name
    return f"x-ratelimit-{part}-{unit}"


def _headers() -> Iterable[tuple[str, str, Json]]:
    text: Json = {"type": "string"}
    number: Json = {"type": "integer", "minimum": 0}
    yield "X-Request-Id", "Names the request in logs, traces, the ledger and problems.", text
    yield "X-Client-Request-Id", "What the caller named the request by.", text
    yield "Cache-Control", "Answers are for the caller alone.", text
    yield "WWW-Authenticate", "The scheme to authenticate with.", text
    yield "Retry-After", "Seconds after which trying again makes sense.", number
    yield "retry-after-ms", "The same in milliseconds.", number
    yield "x-should-retry", "`false` where trying again ends the same way.", {"enum": ["false"]}
    yield "Cache-Status", "What the result cache did (RFC 9211).", text
    yield "Age", "Seconds since the oldest answer was computed, where all were cached.", number
    yield "Sluicegate-Rows", "Rows that the model ran for the items, and rows it knew.", text
    yield "Sluicegate-Vectors", "How many vectors the bytes are, all of one length.", number
    yield "Server-Timing", "Where the time went, in milliseconds; on request.", text
    yield "Idempotency-Replayed", "`true`: it was given to an earlier request.", {"enum": ["true"]}
    yield "ETag", "Names this state; send it as `If-None-Match` or `If-Match`.", text
    yield "RateLimit-Policy", "The limits: name, quota (`q`), window in seconds (`w`).", text
    yield "RateLimit", "What remains of each limit (`r`), and when it is whole (`t`).", text
    for part, unit in _LIMIT_HEADERS:
        schema = text if part == "reset" else number
        yield _limit_header((part, unit)), f"{_PARTS[part]} {unit} with least left.", schema


_PARTS = {
    "limit": "The limit on",
    "remaining": "What remains of the limit on",
    "reset": "When it is whole, such as `6m0s`: the limit on",
}
