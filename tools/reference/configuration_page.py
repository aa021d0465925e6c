"""Writes the reference of the configuration from the fields that declare it.

The type of a field has its unit, its bounds, and when a new value takes effect. The docstring below
it has the meaning.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import msgspec.inspect

from sluicegate.backends.settings import BackendSettings
from sluicegate.gateway.api.field_docs import field_descriptions
from sluicegate.gateway.config.document import Document
from sluicegate.gateway.settings import Settings
from sluicegate.wire.settings import default_of
from tools.reference.markdown import NOTE, cell, table

_HEAD = ("field", "type", "default", "unit", "meaning", "takes effect")
_SCALARS = {
    msgspec.inspect.StrType: "text",
    msgspec.inspect.BoolType: "`true`, `false`",
    msgspec.inspect.IntType: "integer",
    msgspec.inspect.FloatType: "number",
}
_NUMBERS = (msgspec.inspect.IntType, msgspec.inspect.FloatType)
# Limits (`Rule`) are described once, although tenants, keys and models have them.
_RULES = re.compile(r"limits\.(tenant|key)\[\]")
_DOCUMENT_TEXT = """\
## The document

The document is made of the files in the folder `config/`. Every field takes effect with \
`sluicegate config reload`, without a restart.
"""
_GATEWAY_TEXT = """\
## Gateway processes

Environment variables of all gateway processes: workers, operators' listener, shipper, billing, \
request log and batch jobs. A process reads them when it starts.
"""
_BACKEND_TEXT = """\
## Backends

Environment variables of backends. A backend reads them when it starts. Options of `sluicegate \
backend` override them.
"""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a field of the configuration document, or an environment variable."""

    name: str
    kind: msgspec.inspect.Type
    default: Any
    meaning: str
    takes_effect: str


def configuration_page() -> str:
    """Return the page."""
    parts = [
        "# Configuration reference\n\n",
        f"{NOTE}[Configuration](../configuration.md) explains which settings belong together.\n\n",
        _DOCUMENT_TEXT + "\n",
    ]
    for section, entries in document_entries().items():
        parts.append(f"### `{section}`\n\n{_table(entries)}")
    for text, entries in ((_GATEWAY_TEXT, gateway_entries()), (_BACKEND_TEXT, backend_entries())):
        parts.append(f"{text}\n{_table(entries, empty='unset')}")
    return "".join(parts).rstrip() + "\n"


def document_entries() -> dict[str, list[Entry]]:
    """Return the fields of the configuration document, by section."""
    found: dict[str, list[Entry]] = {}
    for section in _entries(Document, str, "reload"):
        entries = {
            _RULES.sub("limits.*[]", entry.name): entry
            for entry in _below(section.kind, section.name, section.takes_effect)
            if not entry.name.startswith("models.*.limits[]")
        }
        found[section.name] = [
            msgspec.structs.replace(entry, name=name) for name, entry in entries.items()
        ]
    return found


def gateway_entries() -> list[Entry]:
    """Return the variables of gateway processes."""
    return [*_entries(Settings, lambda name: f"SLUICEGATE_{name.upper()}", "restart")]


def backend_entries() -> list[Entry]:
    """Return the variables of backends."""
    named = _entries(BackendSettings, lambda name: f"SLUICEGATE_BACKEND_{name.upper()}", "restart")
    return [*named]


def _below(kind: msgspec.inspect.Type, path: str, effect: str) -> Iterator[Entry]:
    """Yield the fields inside a value of the type `kind`."""
    if isinstance(kind, msgspec.inspect.Metadata):
        yield from _below(kind.type, path, effect)
    elif isinstance(kind, msgspec.inspect.VarTupleType):
        yield from _below(kind.item_type, f"{path}[]", effect)
    elif isinstance(kind, msgspec.inspect.DictType):
        yield from _below(kind.value_type, f"{path}.*", effect)
    elif isinstance(kind, msgspec.inspect.UnionType):
        yield from _below_kinds(kind, path, effect)
    elif isinstance(kind, msgspec.inspect.StructType):
        for entry in _entries(kind.cls, lambda name: f"{path}.{name}", effect):
            yield entry
            yield from _below(entry.kind, entry.name, entry.takes_effect)


def _below_kinds(union: msgspec.inspect.UnionType, path: str, effect: str) -> Iterator[Entry]:
    """Yield the fields of structs that a field tells apart, such as `kind`.

    Fields that all of them have come first and once.
    """
    structs = [each for each in union.types if isinstance(each, msgspec.inspect.StructType)]
    if not structs:
        return
    below = [(each, list(_below(each, path, effect))) for each in structs]
    tags = ", ".join(f"`{each.tag}`" for each in structs)
    counts = Counter(entry.name + entry.meaning for _, found in below for entry in found)
    shared = [each for each in below[0][1] if counts[each.name + each.meaning] == len(structs)]
    yield Entry(
        name=f"{path}.{structs[0].tag_field}",
        kind=msgspec.inspect.StrType(),
        default=msgspec.NODEFAULT,
        meaning=f"One of {tags}.",
        takes_effect=effect,
    )
    yield from shared
    for struct, entries in below:
        for entry in entries:
            if counts[entry.name + entry.meaning] < len(structs):
                name = entry.name.replace(path, f"{path.removesuffix(']')}{struct.tag}]", 1)
                yield msgspec.structs.replace(entry, name=name)


def _entries(
    struct: type[msgspec.Struct], name_of: Callable[[str], str], effect: str
) -> Iterator[Entry]:
    meanings = field_descriptions(struct)
    for field in msgspec.structs.fields(struct):
        kind = msgspec.inspect.type_info(field.type)
        when = _marks(kind).get("takes_effect")
        yield Entry(
            name=name_of(field.name),
            kind=kind,
            default=default_of(field),
            meaning=meanings.get(field.name, ""),
            takes_effect=f"reload, {when}" if when else effect,
        )


def _default(value: object, empty: str) -> str:
    if value is None:
        return "unset"
    return empty if value == "" else _as_yaml(value)


def _table(entries: list[Entry], *, empty: str = '`""`') -> str:
    return table(
        _HEAD,
        (
            (
                f"`{entry.name}`",
                cell(type_name(entry.kind)),
                _default(entry.default, empty),
                _unit(entry),
                cell(entry.meaning),
                entry.takes_effect,
            )
            for entry in entries
        ),
    )


def _marks(kind: msgspec.inspect.Type) -> dict[str, Any]:
    """Return what the marks of a type, or of the members of a union, say."""
    if isinstance(kind, msgspec.inspect.Metadata):
        return (kind.extra or {}) | _marks(kind.type)
    if isinstance(kind, msgspec.inspect.UnionType):
        return {name: mark for each in kind.types for name, mark in _marks(each).items()}
    return {}


def _as_yaml(default: object) -> str:
    """Return a default value in backticks, as it is written in the configuration document."""
    if default is msgspec.NODEFAULT:
        return "required"
    if isinstance(default, tuple) and default:
        return "as described"
    if isinstance(default, float) and default.is_integer():
        default = int(default)
    if isinstance(default, str | Path) and str(default):
        return f"`{default}`"
    return f"`{msgspec.json.encode(default).decode()}`"


def _unit(entry: Entry) -> str:
    """Return the unit of a number.

    Raises:
        LookupError: the type of a number has no unit.
    """
    unit: str = _marks(entry.kind).get("unit", "")
    if not unit and type_name(entry.kind).startswith(tuple(_SCALARS[each] for each in _NUMBERS)):
        raise LookupError(f"`{entry.name}` is a number without a unit; see `wire/settings.py`")
    return unit


def type_name(kind: msgspec.inspect.Type) -> str:
    """Return a description of a type, including its bounds."""
    if isinstance(kind, msgspec.inspect.Metadata):
        allowed = (kind.extra_json_schema or {}).get("enum", ())
        return _values(filter(None, allowed)) if allowed else type_name(kind.type)
    if isinstance(kind, msgspec.inspect.LiteralType):
        return _values(kind.values)
    if isinstance(kind, msgspec.inspect.UnionType):
        known = [one for one in kind.types if not isinstance(one, msgspec.inspect.NoneType)]
        return " or ".join(dict.fromkeys(map(type_name, known)))
    if isinstance(kind, msgspec.inspect.CustomType) and kind.cls is Path:
        return "path"
    if isinstance(kind, _NUMBERS):
        return _SCALARS[type(kind)] + _bounds(kind)
    return _several(kind) or _SCALARS[type(kind)]


def _values(values: Iterable[object]) -> str:
    return ", ".join(f"`{value}`" for value in values)


def _several(kind: msgspec.inspect.Type) -> str:
    if isinstance(kind, msgspec.inspect.VarTupleType):
        return f"list of {type_name(kind.item_type)}"
    if isinstance(kind, msgspec.inspect.DictType):
        return f"mapping of {type_name(kind.value_type)}"
    if isinstance(kind, msgspec.inspect.StructType):
        if kind.tag_field:
            return f"mappings, which `{kind.tag_field}` tells apart"
        return kind.cls.__name__.removesuffix("Config").lower() + "s"
    return ""


def _bounds(kind: msgspec.inspect.IntType | msgspec.inspect.FloatType) -> str:
    if kind.ge is not None and kind.le is not None:
        return f", {kind.ge:g} to {kind.le:,g}"
    if kind.ge is not None:
        return f", {kind.ge:g} or more"
    if kind.gt is not None:
        return f", above {kind.gt:g}" + (f", to {kind.le:g}" if kind.le is not None else "")
    return ""
