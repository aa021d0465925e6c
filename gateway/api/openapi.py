"""Builds OpenAPI documents: routes and parameters from Litestar, schemas from the types.

What neither has (errors, headers, examples, routes that are not Litestar handlers) is said by an
`Operation`: of the handler's `opt`, or of a table.
"""

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, get_args, get_origin

import msgspec
from litestar import Litestar, Response
from litestar.di import Dependency, Provide
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.routes import HTTPRoute
from litestar.types import ControllerRouterHandler

from sluicegate.gateway.api.application import Application
from sluicegate.gateway.api.code_samples import SampleSettings, code_samples
from sluicegate.gateway.api.openapi_parts import (
    IDEMPOTENCY_HEADER,
    ON_EVERY_ROUTE,
    PROBLEM,
    PROBLEM_JSON,
    Content,
    Json,
    Operation,
    codes,
    header_components,
    header_references,
    problem_responses,
)
from sluicegate.gateway.api.openapi_schemas import Schemas
from sluicegate.gateway.errors import (
    AuthenticationFailed,
    GatewayError,
    IdempotencyKeyInUse,
    IdempotencyKeyReused,
    PayloadTooLarge,
)
from sluicegate.gateway.http.problem_details import Problem

_SECURITY = "key"
_SPELLINGS = {"gliner": "GLiNER", "openai": "OpenAI", "tei": "TEI"}
"""Words of tags that are not merely capitalized."""
Name = tuple[str, str]
"""A method in lower case and a path."""


def build_document(
    application: Litestar,
    operations: Mapping[Name, Operation],
    *,
    title: str,
    version: str,
    description: str,
    key: str,
    tags: Mapping[str, str],
    samples: SampleSettings,
    takes_idempotency_keys: bool = False,
    of_keys: Sequence[type[GatewayError]] = (AuthenticationFailed,),
) -> bytes:
    """Return the document as JSON.

    `application` has the handlers, and Litestar's own description of them; `key` describes the
    bearer token. `samples` says how the programs that send examples find the listener. With
    `takes_idempotency_keys` every request that changes something may carry one. `of_keys` are the
    errors of every route that needs a key.
    """
    routes = list(_routes(application, operations))
    if takes_idempotency_keys:
        routes = [_with_idempotency_key(route) for route in routes]
    schemas = Schemas([Problem, *_types(routes)])
    schemas.components["Problem"]["properties"]["code"]["enum"] = sorted(codes())
    paths: Json = {}
    responses: Json = {}
    for route in routes:
        method, path = route.name
        operation = _operation(route, schemas, responses, of_keys)
        if programs := code_samples(method, path, operation, samples):
            operation["x-codeSamples"] = programs
        if "parameters" in operation:
            operation["parameters"] = [_unsent(one) for one in operation["parameters"]]
        paths.setdefault(path, {})[method] = operation
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": title,
            "version": version,
            "description": description,
            "license": {"name": "Apache License 2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [_tag(name, text) for name, text in tags.items()],
        "security": [{_SECURITY: []}],
        "paths": {path: dict(sorted(paths[path].items())) for path in sorted(paths)},
        "components": {
            "schemas": dict(sorted(schemas.components.items())),
            "responses": dict(sorted(responses.items())),
            "headers": header_components(),
            "securitySchemes": {
                _SECURITY: {"type": "http", "scheme": "bearer", "description": key}
            },
        },
    }
    return msgspec.json.encode(document)


def _tag(name: str, description: str) -> Json:
    words = [_SPELLINGS.get(word, word.capitalize()) for word in name.split("-")]
    return {"name": name, "description": description, "x-displayName": " ".join(words)}


def described_by_litestar(handlers: Sequence[ControllerRouterHandler]) -> Litestar:
    """Return an application that describes `handlers`, and cannot call them."""
    names = _dependencies(handlers)
    return Application(
        route_handlers=handlers,
        dependencies={name: Provide(lambda: None, sync_to_thread=False) for name in names},
        openapi_config=OpenAPIConfig(title="", version="", render_plugins=[JsonRenderPlugin()]),
        logging_config=None,
    )


def _dependencies(handlers: Iterable[object]) -> Iterator[str]:
    """Yield the names of the arguments that are injected into `handlers`."""
    for each in handlers:
        if isinstance(each, HTTPRouteHandler):
            for name, parameter in inspect.signature(each.fn).parameters.items():
                marks = get_args(parameter.annotation)[1:]
                if any(isinstance(mark, Dependency) for mark in marks):
                    yield name
        elif isinstance(each, type):
            yield from _dependencies(vars(each).values())


def _unsent(parameter: Json) -> Json:
    """Return a parameter. The API page does not send the example of an optional one."""
    if parameter["required"] or "example" not in parameter:
        return parameter
    shown = {name: value for name, value in parameter.items() if name != "example"}
    return shown | {"examples": {"example": {"value": parameter["example"], "x-disabled": True}}}


class _Route(NamedTuple):
    name: Name
    operation: Operation
    handler: HTTPRouteHandler | None
    described: Json
    """Litestar's description; empty for what is no handler of it."""

    @property
    def bodies(self) -> tuple[Content, ...]:
        """The bodies it takes, in the order of preference."""
        data = self.handler and self.handler.parsed_fn_signature.parameters.get("data")
        if not data:
            return self.operation.body
        examples = self.operation.body or (Content(),)
        return tuple(_typed(content, data.annotation) for content in examples)

    @property
    def answers(self) -> Mapping[int, tuple[Content, ...]]:
        """The bodies of its answers by status."""
        if self.handler is None:
            return self.operation.answers
        answers = self.operation.answers or {self.handler.status_code: (Content(),)}
        returned = self.handler.parsed_fn_signature.return_type.raw
        if get_origin(returned) is Response:
            (returned,) = get_args(returned)
        return {
            status: tuple(_typed(content, returned) for content in contents)
            for status, contents in answers.items()
        }


def _routes(application: Litestar, operations: Mapping[Name, Operation]) -> Iterator[_Route]:
    described = application.openapi_schema.to_schema()["paths"]
    found = set()
    for route in application.routes:
        if not isinstance(route, HTTPRoute) or route.path_format not in described:
            continue
        for handler in route.route_handlers:
            for method in sorted(handler.http_methods - {"OPTIONS", "HEAD"}):
                name = method.lower(), route.path_format
                found.add(name)
                operation = handler.opt.get("operation") or operations[name]
                yield _Route(name, operation, handler, described[route.path_format][method.lower()])
    for name in operations.keys() - found:
        yield _Route(name, operations[name], None, {})


def _with_idempotency_key(route: _Route) -> _Route:
    """Return a route that takes an `Idempotency-Key`, unless it changes nothing."""
    operation = route.operation
    if route.name[0] == "get":
        return route
    changed = msgspec.structs.replace(
        operation,
        parameters=(*operation.parameters, IDEMPOTENCY_HEADER),
        errors=(*operation.errors, IdempotencyKeyInUse, IdempotencyKeyReused),
        headers=(*operation.headers, "Idempotency-Replayed"),
    )
    return route._replace(operation=changed)


def _typed(content: Content, annotation: Any) -> Content:
    """Return `content` with the handler's type, where it has none and is not empty."""
    if content.type is not None or content.schema is not None or not content.media:
        return content
    return msgspec.structs.replace(content, type=annotation)


def _types(routes: list[_Route]) -> Iterator[Any]:
    for route in routes:
        yield route.operation.error_format.type
        for contents in (route.bodies, *route.answers.values()):
            yield from (one.type for one in contents if one.type is not None)


def _operation(
    route: _Route, schemas: Schemas, responses: Json, of_keys: Sequence[type[GatewayError]]
) -> Json:
    operation = route.operation
    found: Json = {
        "operationId": operation.id,
        "summary": operation.summary,
        "tags": [operation.tag],
    }
    if route.handler is not None and route.handler.fn.__doc__:
        found["description"] = inspect.cleandoc(route.handler.fn.__doc__)
    if route.handler is not None and (role := route.handler.opt.get("role")):
        found["x-required-role"] = str(role)
    parameters = [*_own_parameters(route), *operation.parameters]
    if parameters:
        found["parameters"] = parameters
    if route.bodies:
        content = {one.media: _media(one, schemas) for one in route.bodies}
        found["requestBody"] = {"required": operation.is_body_required, "content": content}
    errors = [*ON_EVERY_ROUTE, *operation.errors]
    if route.bodies:
        errors.append(PayloadTooLarge)
    if operation.is_public or (route.handler and route.handler.opt.get("public")):
        found["security"] = []
    else:
        errors += of_keys
    written = operation.error_format
    schema = schemas.reference(written.type)
    references, problems = problem_responses(errors, operation.kind, written, schema)
    responses |= problems
    found["responses"] = references | {
        str(status): _answer(status, contents, operation, schemas, references.get(str(status)))
        for status, contents in route.answers.items()
    }
    return found


def _own_parameters(route: _Route) -> Iterator[Json]:
    """Yield the parameters that the handler names; one that may be left out is never `null`."""
    for described in route.described.get("parameters", ()):
        schema = described["schema"]
        kinds = [kind for kind in schema.get("oneOf", ()) if kind != {"type": "null"}]
        if kinds:
            schema = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
        parameter = {
            "name": described["name"],
            "in": described["in"],
            "required": described.get("required", False),
            "schema": {
                name: part
                for name, part in schema.items()
                if name != "description" and (name, part) != ("default", "")
            },
        }
        more = dict(route.operation.about.get(described["name"], {}))
        parameter["schema"] |= more.pop("schema", {})
        yield parameter | more


def _answer(
    status: int,
    contents: tuple[Content, ...],
    operation: Operation,
    schemas: Schemas,
    problem: Json | None,
) -> Json:
    found: Json = {
        "description": next((one.summary for one in contents if one.summary), "The answer"),
        "headers": header_references(status, operation.kind, operation.headers),
    }
    content = {one.media: _media(one, schemas) for one in contents if one.media}
    if problem is not None:
        content.setdefault(PROBLEM_JSON, {"schema": PROBLEM})
    return found | {"content": content} if content else found


def _media(content: Content, schemas: Schemas) -> Json:
    schema = schemas.reference(content.type) if content.schema is None else content.schema
    media: Json = {"schema": schema}
    if content.example is not None:
        named = {"summary": content.summary or "Example", "value": content.example}
        media["examples"] = {"example": named}
    return media
