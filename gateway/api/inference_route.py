"""Defines how a route turns bytes into a request, and an answer into bytes.

The native routes are `gateway.api.native_routes`; each dialect adds routes of its own. All else
(keys, limits, deadlines, cache, events, traces) is the same for every route.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from sluicegate.gateway.config.document import Document
from sluicegate.gateway.http.problem_details import PROBLEMS, ErrorFormat
from sluicegate.gateway.inference.interfaces import ModelTable
from sluicegate.gateway.inference.visibility import is_visible, visible_models
from sluicegate.gateway.telemetry.guard_verdicts import GuardVerdicts
from sluicegate.gateway.types import (
    Answer,
    InferenceRequest,
    Principal,
    RequestId,
    ServedModel,
    Usage,
)
from sluicegate.wire.protocol import Task

JSON = b"content-type: application/json\r\n"
_PARAMETER = re.compile(r"\{(\w+)(:path)?\}")
_ESCAPED_PARAMETER = re.compile(r"\\\{(\w+)(:path)?\\\}")
_SLASHES = re.compile("//+")


class RequestBody(Protocol):
    """A decoded body, which makes the request in the gateway's own terms."""

    def items(self) -> list[Any]:
        """Return the items; they are counted before the request is made."""
        ...

    def request(self, model: str) -> InferenceRequest:
        """Return the request; `model` is the path's parameter of that name, if it has one."""
        ...


class BodySource(msgspec.Struct, frozen=True, gc=False):
    """Holds what a body is decoded from."""

    raw: bytes
    parameters: Mapping[str, str]
    """Those of the path, by name."""
    fields: tuple[bytes, ...]
    """The values of the route's `headers`, in their order; empty where one is missing."""
    document: Document
    models: ModelTable
    principal: Principal | None

    def served(self, name: str) -> ServedModel | None:
        """Return a model that the caller may know of, `None` where no such model is served."""
        found = self.models.model(name)
        if found is None or self.principal is None:
            return found
        return found if is_visible(found, self.document, self.principal) else None

    def visible(self) -> Sequence[ServedModel]:
        """Return all models that the caller may know of."""
        found = self.models.models()
        if self.principal is None:
            return found
        return visible_models(found, self.document, self.principal)


class Rendered(msgspec.Struct, frozen=True, gc=False):
    """Holds the body of an answer, and the header lines that say what it is."""

    lines: bytes
    """`JSON`, or other lines, each ended by CRLF; `Content-Length` is added."""
    body: bytes
    verdicts: GuardVerdicts | None = None
    """If a guard judged the texts: what metrics count of it."""


class InferenceRoute:
    """Answers `POST` to one path. Subclasses decode and encode; they keep nothing of a request."""

    path: str
    """Its path, where `{name}` is one segment and `{name:path}` any number of them."""
    task: Task
    """The task of requests whose body cannot be decoded, for metrics."""
    headers: tuple[bytes, ...] = ()
    """Headers (in lower case) whose values shape the request or its answer."""
    errors: ErrorFormat = PROBLEMS
    """How errors are written."""
    has_other_methods = False
    """Paths that it matches have routes of other methods, too, which Litestar answers."""
    reads_models = False
    """The served models decide what a body means: equal bodies are decoded anew."""
    answer_growth = 1.0
    """How many times as long as a native answer the route's answer may be."""
    answers_failures = False
    """The route has an answer to a request with `continue_on_error` even if no item could be
    computed."""
    takes_json = True
    """Bodies are JSON, so that lines of batches may have them."""

    def __init__(self) -> None:
        self.names = tuple([name for name, _ in _PARAMETER.findall(self.path)])
        self.template = _PARAMETER.sub(r"{\1}", self.path)
        self.metric_name = self.template
        """What metrics call it."""
        self.span_name = f"POST {self.template}"
        self.attributes = {"http.request.method": "POST", "http.route": self.template}

    def json_part(self, raw: bytes, fields: tuple[bytes, ...]) -> bytes:
        """Return what of a body is JSON: its values are counted before any is made."""
        return raw

    def decode(self, source: BodySource) -> RequestBody:
        """Return the decoded body.

        Raises:
            InvalidRequest: it does not fit the route; so do errors of msgspec.
        """
        raise NotImplementedError

    def is_spliced(self, body: Any) -> bool:
        """Return whether the answer to `body` contains each stored result unchanged and once.

        Results from Redis are then put into a template, and not decoded.
        """
        return False

    def encode(self, body: Any, answer: Answer, usage: Usage, request_id: RequestId) -> Rendered:
        """Return the answer to `body`, which `decode` returned.

        Items of `answer` have failed only if the request has `continue_on_error`.

        A memory hit is rendered once: later hits are sent the same bytes, with other headers. Large
        answers are encoded in a thread. A call that holds the GIL stops the event loop, too: encode
        item by item.
        """
        raise NotImplementedError


class RouteMatch(NamedTuple):
    """Holds a route and the values of the parameters of a path that it answers, in their order."""

    route: InferenceRoute
    parameters: tuple[str, ...] = ()


class InferenceRoutes:
    """Finds the inference route of a path. Of patterns that match, the first decides."""

    def __init__(self, routes: Iterable[InferenceRoute]) -> None:
        self.routes = tuple(routes)
        self._exact = {
            route.path: RouteMatch(route) for route in self.routes if "{" not in route.path
        }
        self._patterns = [
            (re.compile(path_pattern(route.path)), route)
            for route in self.routes
            if route.path not in self._exact
        ]

    def find(self, path: str) -> RouteMatch | None:
        """Return the route of a decoded path, `None` where it is none of them."""
        found = self._exact.get(path)
        if found is None:
            path = normal_path(path)
            found = self._exact.get(path)
        if found is None:
            for pattern, route in self._patterns:
                if (match := pattern.fullmatch(path)) is not None:
                    return RouteMatch(route, match.groups())
        return found


def normal_path(path: str) -> str:
    """Return a path without needless slashes, as Litestar reads it."""
    return "/" + _SLASHES.sub("/", path.strip("/"))


def path_pattern(path: str) -> str:
    """Return the regular expression of a normal path with parameters."""
    return _ESCAPED_PARAMETER.sub(
        lambda found: f"(?P<{found[1]}>{'(?s:.+?)' if found[2] else '[^/]+'})", re.escape(path)
    )
