"""Writes the API reference of both listeners: every route, and example programs that call it.

The text comes from the OpenAPI documents. A test runs the example programs.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from sluicegate.gateway.admin.app import HANDLERS
from sluicegate.gateway.admin.openapi import operators_document
from sluicegate.gateway.api.routes import customers_document
from sluicegate.gateway.dialects.registry import DIALECTS
from tools.reference.errors_page import errors
from tools.reference.markdown import NOTE, cell, fence, table
from tools.reference.schema_text import Json, fields_table, objects, type_text

_ALL = ("curl", "Python", "JavaScript")
_COMMON = """\
The programs run unchanged if `SLUICEGATE_URL` holds the gateway's address and `SLUICEGATE_KEY` an \
API key. Python programs need `pip install '.[client]'` in a clone, or the wheel's extra `client`.
[The customer API](../../api.md) explains headers, limits, caching and batches. \
[Errors](../errors.md) lists every error.
"""
_DIALECT = """\
The commands run unchanged if `SLUICEGATE_URL` holds the gateway's address and `SLUICEGATE_KEY` an \
API key. The gateway's `/docs` also has each in Python and JavaScript.
[The customer API](../../api.md) explains headers, limits, caching and batches. \
[Errors](../errors.md) lists every error.
"""
_OPERATORS = """\
Every route except health and documentation needs the key of an operator with the route's role: \
`curl -H "Authorization: Bearer $(cat .sluicegate/admin-key)" http://127.0.0.1:8081/admin/config`.
The commands run unchanged if `SLUICEGATE_ADMIN_URL` holds the listener's address and
`SLUICEGATE_ADMIN_KEY` the key. The listener's `/docs` also has each in Python and JavaScript.
[Operators](../../operations/operators.md) explains roles, and when a change takes effect.
"""
_MEDIA = ("application/json", "multipart/form-data", "application/octet-stream")


class ReferencePage(NamedTuple):
    """Describes a page: its file below `reference`, its title, and the tags of its routes."""

    file: str
    title: str
    tags: tuple[str, ...]


def _pages() -> tuple[ReferencePage, ...]:
    """Return the pages of native routes, and a page for each title of a dialect."""
    tags: dict[str, list[str]] = {}
    for dialect in DIALECTS:
        tags.setdefault(dialect.title, []).append(dialect.name)
    return (
        ReferencePage("api/inference", "Inference", ("inference",)),
        ReferencePage("api/account", "Models, usage, keys, health", ("metadata", "health")),
        *(
            ReferencePage(f"clients/{names[0]}", title, tuple(names))
            for title, names in tags.items()
        ),
    )


PAGES = _pages()
"""The pages. Each tag of the OpenAPI documents is on one page."""


def api_pages() -> dict[str, str]:
    """Return the pages by path below `docs`.

    Raises:
        LookupError: a tag of an OpenAPI document is on no page.
    """
    document = customers()
    tags = {tag["name"]: tag["description"] for tag in document["tags"]}
    if lost := tags.keys() - {tag for page in PAGES for tag in page.tags}:
        raise LookupError(f"add the tags {sorted(lost)} to a page in `_pages` of `{__file__}`")
    found = {
        page.file: _page(page, document, tags, _COMMON, samples=_ALL)
        if page.file.startswith("api/")
        else _page(page, document, tags, _DIALECT)
        for page in PAGES
    }
    operators = operators_routes()
    tags = {tag["name"]: tag["description"] for tag in operators["tags"]}
    page = ReferencePage("api/operators", "The operators' listener", tuple(tags))
    found[page.file] = _page(page, operators, tags, _OPERATORS)
    return {f"reference/{file}.md": text for file, text in found.items()}


def customers() -> Json:
    """Return the OpenAPI document of the customers' listener."""
    document: Json = msgspec.json.decode(customers_document("reference", DIALECTS))
    return document


def operators_routes() -> Json:
    """Return the OpenAPI document of the operators' listener."""
    document: Json = msgspec.json.decode(operators_document(HANDLERS))
    return document


def _page(
    page: ReferencePage,
    document: Json,
    tags: dict[str, str],
    common: str,
    *,
    samples: tuple[str, ...] = _ALL[:1],
) -> str:
    routes = [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if set(operation["tags"]) & set(page.tags)
    ]
    intro = " ".join(tags[tag] for tag in page.tags)
    usual = set.intersection(*(_codes(one, document) for _, _, one in routes))
    parts = [f"# {page.title}\n\n{NOTE}{intro}\n{common}"]
    parts.append(f"Each route may answer with these [errors](../errors.md): {_listed(usual)}.\n\n")
    for method, path, operation in routes:
        parts.append(_route(method, path, operation, document, samples))
        if more := _codes(operation, document) - usual:
            parts.append(f"More errors: {_listed(more)}.\n\n")
    schemas = document["components"]["schemas"]
    described = sorted({name for _, _, one in routes for name in _described(one, schemas)})
    if described:
        parts.append("## Objects\n\n")
        parts += [_object(name, schemas[name]) for name in described]
    return "".join(parts).rstrip() + "\n"


def _route(
    method: str, path: str, operation: Json, document: Json, samples: tuple[str, ...]
) -> str:
    schemas = document["components"]["schemas"]
    parts = [f"## {method} {path}\n\n{_summary(operation)}\n\n"]
    if operation.get("security") == []:
        parts.append("No key is needed.\n\n")
    if role := operation.get("x-required-role"):
        parts.append(f"Needs the role `{role}`.\n\n")
    parts.append(_parameters(operation))
    for media, schema in _media(operation.get("requestBody", {})):
        named = schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
        fields = fields_table(named)
        parts.append(f"Body, `{media}`" + (f":\n\n{fields}" if fields else ".\n\n"))
    parts += [
        fence(sample["lang"], sample["source"], sample["label"])
        for sample in operation.get("x-codeSamples", ())
        if sample["label"] in samples
    ]
    return "".join([*parts, _answer(operation)])


def _summary(operation: Json) -> str:
    """Return an operation's summary, and its description if it says more than the summary."""
    summary: str = operation["summary"].rstrip(".") + "."
    text = cell(operation.get("description", "").partition("\n\n")[0])
    if summary.rstrip(".").lower() in text.lower():
        return text
    return f"{summary} {text}".strip()


def _parameters(operation: Json) -> str:
    described = [one for one in operation.get("parameters", ()) if one["in"] != "header"]
    if not described:
        return ""
    return table(
        ("parameter", "in", "type", "meaning"),
        (
            (
                f"`{one['name']}`",
                one["in"] + (", required" if one.get("required") else ""),
                cell(type_text(one["schema"])),
                cell(one.get("description", "")),
            )
            for one in described
        ),
    )


def _answer(operation: Json) -> str:
    parts = []
    contents = operation["responses"].get("200", {}).get("content", {})
    for media, content in contents.items():
        parts.append(f"Response, `{media}`: {type_text(content.get('schema', {}))}\n\n")
        for example in content.get("examples", {}).values():
            if media == _MEDIA[0]:
                text = msgspec.json.format(msgspec.json.encode(example["value"]), indent=2)
                parts.append(fence("json", text.decode()))
    return "".join(parts)


def _codes(operation: Json, document: Json) -> set[str]:
    codes: set[str] = set()
    for response in operation["responses"].values():
        name = response.get("$ref", "").rpartition("/")[2]
        for content in (
            document["components"]["responses"].get(name, {}).get("content", {}).values()
        ):
            codes |= set(content.get("examples", {}))
    return codes & {error.code for error in errors()}


def _listed(codes: set[str]) -> str:
    """Return codes with their statuses, in the order of the statuses."""
    found = sorted((error.status, error.code) for error in errors() if error.code in codes)
    return ", ".join(f"{status} `{code}`" for status, code in found)


def _media(part: Json) -> Iterator[tuple[str, Json]]:
    for media, content in part.get("content", {}).items():
        yield media, content.get("schema", {})


def _described(operation: Json, schemas: Json) -> list[str]:
    """Return the objects that the page must describe.

    These are the objects in a response, and the objects inside fields of a body.
    """
    bodies = [
        schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
        for _, schema in _media(operation.get("requestBody", {}))
    ]
    answers = [schema for _, schema in _media(operation["responses"].get("200", {}))]
    return objects([*bodies, *answers], schemas)


def _object(name: str, schema: Json) -> str:
    text = cell(schema.get("description", ""))
    values = "" if schema.get("properties") else f"{type_text(schema)}\n\n"
    return f"### {name}\n\n{text}\n\n{values}{fields_table(schema)}"
