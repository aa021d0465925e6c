"""Defines a dialect: the routes by which the clients of another product are answered."""

from collections.abc import Mapping, Sequence

import msgspec
from litestar.types import ControllerRouterHandler

from sluicegate.gateway.api.inference_route import InferenceRoute, InferenceRoutes
from sluicegate.gateway.api.openapi_parts import Operation
from sluicegate.gateway.http.problem_details import PROBLEMS, ErrorFormat


class Dialect(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Holds what a dialect adds to the API; `gateway.dialects.registry` lists them."""

    name: str
    """The tag of its routes in the OpenAPI document."""
    title: str
    """The title of its page in the reference. Dialects with equal titles share a page."""
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
    """Prefixes of the paths of `handlers`. Errors below them have the format `errors`."""


def error_format(routes: InferenceRoutes, dialects: Sequence[Dialect], path: str) -> ErrorFormat:
    """Return how errors of a path are written."""
    match = routes.find(path)
    if match is not None:
        return match.route.errors
    return next((one.errors for one in dialects if path.startswith(one.paths)), PROBLEMS)
