"""Writes the reference of the configuration from the types of its fields and variables.

The meaning of a field is its docstring. docs/configuration.md says which fields do not take effect
immediately.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec
import msgspec.inspect

from backends.settings import BackendSettings
from gateway.api.field_docs import field_descriptions
from gateway.config.document import Document
from gateway.settings import Settings
from tools.reference.markdown import NOTE, cell, from_below, names, rows, table
from tools.reference.units import unit

_SOURCE = "configuration.md"
_HEAD = ("field", "type", "default", "unit", "meaning", "takes effect")
# The columns of the table in docs/configuration.md that lists fields that take effect late.
_LATE = ("field", "takes effect")
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
    kind: Any
    """The type annotation."""
    default: str
    """The default in backticks, or a word such as `required`."""
    meaning: str


def configuration_page() -> str:
    """Return the page."""
    late = {
        name: row[1] for row in rows(_SOURCE) for name in names(row[0]) if len(row) == len(_LATE)
    }
    parts = [
        "# Configuration reference\n\n",
        f"{NOTE}[Configuration](../configuration.md) explains which settings belong together.\n\n",
        _DOCUMENT_TEXT + "\n",
    ]
    for section, entries in document_entries().items():
        effects = {entry.name: _reload(entry.name, late) for entry in entries}
        parts.append(f"### `{section}`\n\n{_table(entries, effects)}")
    for text, entries in ((_GATEWAY_TEXT, gateway_entries()), (_BACKEND_TEXT, backend_entries())):
        effects = {entry.name: "restart" for entry in entries}
        parts.append(f"{text}\n{_table(entries, effects)}")
    return "".join(parts).rstrip() + "\n"


def document_entries() -> dict[str, list[Entry]]:
    """Return the fields of the configuration document, by section."""
    found: dict[str, list[Entry]] = {}
    for field in msgspec.structs.fields(Document):
        entries = {
            _RULES.sub("limits.*[]", entry.name): entry
            for entry in _below(field.type, field.name)
            if not entry.name.startswith("models.*.limits[]")
        }
        found[field.name] = [
            msgspec.structs.replace(entry, name=name) for name, entry in entries.items()
        ]
    return found


def gateway_entries() -> list[Entry]:
    """Return the variables of gateway processes."""
    return list(_variables(Settings, "SLUICEGATE_"))


def backend_entries() -> list[Entry]:
    """Return the variables of backends."""
    return list(_variables(BackendSettings, "SLUICEGATE_BACKEND_"))


def _below(kind: Any, path: str) -> Iterator[Entry]:
    if get_origin(kind) is tuple:
        yield from _below(get_args(kind)[0], f"{path}[]")
    elif get_origin(kind) is dict:
        yield from _below(get_args(kind)[1], f"{path}.*")
    elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        meanings = field_descriptions(kind)
        for field in msgspec.structs.fields(kind):
            yield from _field(field, f"{path}.{field.name}", meanings.get(field.name, ""))


def _field(field: msgspec.structs.FieldInfo, name: str, meaning: str) -> Iterator[Entry]:
    if not isinstance(field.default, msgspec.Struct):
        made = field.default_factory
        default = field.default if made is msgspec.NODEFAULT else made()
        yield Entry(
            name=name,
            kind=field.type,
            default="required" if field.required else _as_yaml(default),
            meaning=meaning,
        )
    yield from _below(field.type, name)


def _variables(kind: type[msgspec.Struct], prefix: str) -> Iterator[Entry]:
    meanings = field_descriptions(kind)
    for field in msgspec.structs.fields(kind):
        default = "unset" if field.default in ("", None) else _as_yaml(field.default)
        name = prefix + field.name.upper()
        yield Entry(name=name, kind=field.type, default=default, meaning=meanings[field.name])


def _table(entries: list[Entry], effects: Mapping[str, str]) -> str:
    return table(
        _HEAD,
        (
            (
                f"`{entry.name}`",
                cell(type_name(entry.kind)),
                entry.default,
                _unit(entry),
                cell(entry.meaning),
                from_below(effects[entry.name], _SOURCE),
            )
            for entry in entries
        ),
    )


def _reload(name: str, late: Mapping[str, str]) -> str:
    section = re.split(r"[.\[]", name)[0]
    note = late.get(name) or late.get(section)
    return f"reload, {note}" if note else "reload"


def _as_yaml(default: object) -> str:
    """Return a default value in backticks, as it is written in the configuration document."""
    if isinstance(default, tuple) and default:
        return "as described"
    if isinstance(default, float) and default.is_integer():
        default = int(default)
    if isinstance(default, str | Path) and str(default):
        return f"`{default}`"
    return f"`{msgspec.json.encode(default).decode()}`"


def _unit(entry: Entry) -> str:
    kind = msgspec.inspect.type_info(entry.kind)
    members = kind.types if isinstance(kind, msgspec.inspect.UnionType) else (kind,)
    return unit(entry.name) if any(isinstance(one, _NUMBERS) for one in members) else ""


def type_name(annotation: Any) -> str:
    """Return a description of a type, including its bounds."""
    return _type_name(msgspec.inspect.type_info(annotation))


def _type_name(kind: msgspec.inspect.Type) -> str:
    if isinstance(kind, msgspec.inspect.LiteralType):
        return ", ".join(f"`{value}`" for value in kind.values)
    if isinstance(kind, msgspec.inspect.UnionType):
        known = [one for one in kind.types if not isinstance(one, msgspec.inspect.NoneType)]
        return " or ".join(map(_type_name, known))
    if isinstance(kind, msgspec.inspect.CustomType) and kind.cls is Path:
        return "path"
    if isinstance(kind, _NUMBERS):
        return _SCALARS[type(kind)] + _bounds(kind)
    return _several(kind) or _SCALARS[type(kind)]


def _several(kind: msgspec.inspect.Type) -> str:
    if isinstance(kind, msgspec.inspect.VarTupleType):
        return f"list of {_type_name(kind.item_type)}"
    if isinstance(kind, msgspec.inspect.DictType):
        return f"mapping of {_type_name(kind.value_type)}"
    if isinstance(kind, msgspec.inspect.StructType):
        return kind.cls.__name__.removesuffix("Config").lower() + "s"
    return ""


def _bounds(kind: msgspec.inspect.IntType | msgspec.inspect.FloatType) -> str:
    if kind.ge is not None and kind.le is not None:
        return f", {kind.ge:g} to {kind.le:,g}"
    if kind.ge is not None:
        return f", {kind.ge:g} or more"
    if kind.gt is not None and kind.le is not None:
        return f", above {kind.gt:g}, to {kind.le:g}"
    return ""
