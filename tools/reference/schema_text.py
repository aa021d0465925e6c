"""Describes the JSON schemas of an OpenAPI document in words."""

from collections.abc import Iterator
from typing import Any

from tools.reference.markdown import cell, table

Json = dict[str, Any]
_WORDS = {"array": "list", "string": "text", "object": "object", "integer": "integer"}
_PREFIX = "#/components/schemas/"
_HEAD = ("field", "type", "default", "meaning")


def type_text(schema: Json) -> str:
    """Return the type of `schema` without `null`. An object's name is a link to its section."""
    if reference := schema.get("$ref"):
        name = reference.removeprefix(_PREFIX)
        return f"[{name}](#{name.lower()})"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"] if value is not None)
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(filter(None, map(type_text, schema[key]))))
    kinds = schema.get("type", "any value")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    return " or ".join(_plain(kind, schema) for kind in kinds if kind != "null")


def _plain(kind: str, schema: Json) -> str:
    if kind == "array" and (below := schema.get("items")):
        inner = type_text(below)
        return f"list of ({inner})" if " or " in inner else f"list of {inner}"
    return _WORDS.get(kind, kind) + _bounds(schema)


def _bounds(schema: Json) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f", {low:g} to {high:g}"
    return f", {low:g} or more" if low else ""


def fields_table(schema: Json) -> str:
    """Return a table of an object's fields; empty if it has none."""
    required = schema.get("required", ())
    found = schema.get("properties", {})
    if not found:
        return ""
    return table(
        _HEAD,
        (
            (
                f"`{name}`",
                cell(type_text(field)),
                _default(field, is_required=name in required),
                cell(field.get("description", "")),
            )
            for name, field in found.items()
        ),
    )


def _default(schema: Json, *, is_required: bool) -> str:
    if is_required:
        return "required"
    default = schema.get("default")
    if default is None or default == "":
        return ""
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def references(part: Any) -> Iterator[str]:
    """Yield the names of the schemas that `part` refers to."""
    if isinstance(part, dict):
        reference = part.get("$ref", "")
        if reference.startswith(_PREFIX):
            yield reference.removeprefix(_PREFIX)
        for value in part.values():
            yield from references(value)
    elif isinstance(part, list):
        for value in part:
            yield from references(value)


def objects(part: Any, schemas: Json) -> list[str]:
    """Return the sorted names of all schemas that `part` refers to, directly or not."""
    found: set[str] = set()
    waiting = list(references(part))
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += references(schemas[name])
    return sorted(found)
