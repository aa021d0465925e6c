"""docs/operations.md has a table of the routes that each role of operators may use."""

import re
from collections.abc import Iterator

from litestar import Controller
from litestar.handlers import HTTPRouteHandler

from gateway.admin.app import HANDLERS
from gateway.admin.operators import Operator, Role, required_role
from tests.docs.tables import page


def routes() -> Iterator[tuple[str, Role]]:
    """Yield method and path of each documented route that needs a role, and that role."""
    for owner in HANDLERS:
        prefix, handlers = "", [owner]
        if isinstance(owner, type) and issubclass(owner, Controller):
            prefix, handlers = owner.path, list(vars(owner).values())
        for handler in handlers:
            if not isinstance(handler, HTTPRouteHandler) or handler.opt.get("public"):
                continue
            for path in handler.paths:
                for method in handler.http_methods:
                    name = re.sub(r":\w+}", "}", f"{prefix}{path}".rstrip("/"))
                    yield f"{method} {name}", required_role(str(method), handler.opt)


def table() -> str:
    """Return the table: a row for each route, a column for each role."""
    roles = list(Role)
    lines = ["| route | " + " | ".join(f"`{role}`" for role in roles) + " |", "|---" * 6 + "|"]
    for route, needed in routes():
        allowed = [Operator("", frozenset({role})).may(needed) for role in roles]
        lines.append(f"| `{route}` | " + " | ".join("yes" if one else "" for one in allowed) + " |")
    return "\n".join(lines) + "\n"


def test_the_table_of_roles_is_that_of_the_routes() -> None:
    expected = table()

    assert expected in page("docs/operations.md"), f"put this into the page:\n{expected}"
