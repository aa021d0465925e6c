"""Defines a dialect: the routes by which the clients of another product are answered."""

from collections.abc import Mapping, Sequence

import msgspec
from litestar.types import ControllerRouterHandler

from gateway.api.error_format import PROBLEMS, ErrorFormat
from gateway.api.inference_route import InferenceRoute
from gateway.api.openapi_parts import Operation


class Dialect(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Holds what a dialect adds to the API; `gateway.dialects.registry` lists them."""

    name: str
    """The tag of its routes in the OpenAPI document."""
    description: str
    routes: Mapping[InferenceRoute, Operation | None]
    """Its inference routes, and what the OpenAPI document says of each; `None`: it is left out."""
    handlers: Sequence[ControllerRouterHandler] = ()
    """Its other routes, which Litestar answers."""
    operations: Mapping[tuple[str, str], Operation] = {}
    """What the OpenAPI document says, by method and path, of handlers that are not in it."""
    errors: ErrorFormat = PROBLEMS
    """How errors of `handlers` and of `paths` are written."""
    paths: tuple[str, ...] = ()
    """What paths of Litestar routes begin with, whose errors are written so."""


def error_format(dialects: Sequence[Dialect], path: str) -> ErrorFormat:
    """Return how errors of a path are written."""
    for dialect in dialects:
        for route in dialect.routes:
            if route.answers(path):
                return route.errors
    for dialect in dialects:
        if dialect.paths and path.startswith(dialect.paths):
            return dialect.errors
    return PROBLEMS
