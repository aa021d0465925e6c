"""Writes the reference of the configuration from the fields that declare it.

The type of a field has its unit, its bounds, and when a new value takes effect. The docstring below
it has the meaning.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import msgspec
import msgspec.inspect

from backends.settings import BackendSettings
from gateway.api.field_docs import field_descriptions
from gateway.config.document import Document
from gateway.settings import Settings
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
    kind: Any
    """The type annotation."""
    default: str
    """The default in backticks, or a word such as `required`."""
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
        parts.append(f"{text}\n{_table(entries)}")
    return "".join(parts).rstrip() + "\n"


def document_entries() -> dict[str, list[Entry]]:
    """Return the fields of the configuration document, by section."""
    found: dict[str, list[Entry]] = {}
    for field in msgspec.structs.fields(Document):
        entries = {
            _RULES.sub("limits.*[]", entry.name): entry
            for entry in _below(field.type, field.name, _effect(field.type, "reload"))
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


def _below(kind: Any, path: str, effect: str) -> Iterator[Entry]:
    if get_origin(kind) is Annotated:
        yield from _below(get_args(kind)[0], path, effect)
    elif get_origin(kind) is tuple:
        yield from _below(get_args(kind)[0], f"{path}[]", effect)
    elif get_origin(kind) is dict:
        yield from _below(get_args(kind)[1], f"{path}.*", effect)
    elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        meanings = field_descriptions(kind)
        for field in msgspec.structs.fields(kind):
            name = f"{path}.{field.name}"
            yield from _field(field, name, meanings.get(field.name, ""), effect)


def _field(
    field: msgspec.structs.FieldInfo, name: str, meaning: str, effect: str
) -> Iterator[Entry]:
    if not isinstance(field.default, msgspec.Struct):
        made = field.default_factory
        default = field.default if made is msgspec.NODEFAULT else made()
        yield Entry(
            name=name,
            kind=field.type,
            default="required" if field.required else _as_yaml(default),
            meaning=meaning,
            takes_effect=_effect(field.type, effect),
        )
    yield from _below(field.type, name, effect)


def _variables(kind: type[msgspec.Struct], prefix: str) -> Iterator[Entry]:
    meanings = field_descriptions(kind)
    for field in msgspec.structs.fields(kind):
        default = "unset" if field.default in ("", None) else _as_yaml(field.default)
        name = prefix + field.name.upper()
        yield Entry(
            name=name,
            kind=field.type,
            default=default,
            meaning=meanings.get(field.name, ""),
            takes_effect="restart",
        )


def _table(entries: list[Entry]) -> str:
    return table(
        _HEAD,
        (
            (
                f"`{entry.name}`",
                cell(type_name(entry.kind)),
                entry.default,
                _unit(entry),
                cell(entry.meaning),
                entry.takes_effect,
            )
            for entry in entries
        ),
    )


def _effect(kind: Any, usual: str) -> str:
    when = _marks(msgspec.inspect.type_info(kind)).get("takes_effect")
    return f"reload, {when}" if when else usual


def _marks(kind: msgspec.inspect.Type) -> dict[str, Any]:
    """Return what the marks of a type, or of the members of a union, say."""
    if isinstance(kind, msgspec.inspect.Metadata):
        return (kind.extra or {}) | _marks(kind.type)
    if isinstance(kind, msgspec.inspect.UnionType):
        return {name: mark for each in kind.types for name, mark in _marks(each).items()}
    return {}


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
    """Return the unit of a number.

    Raises:
        LookupError: the type of a number has no unit.
    """
    unit: str = _marks(msgspec.inspect.type_info(entry.kind)).get("unit", "")
    if not unit and type_name(entry.kind).startswith(tuple(_SCALARS[each] for each in _NUMBERS)):
        raise LookupError(f"`{entry.name}` is a number without a unit; see `wire/settings.py`")
    return unit


def type_name(annotation: Any) -> str:
    """Return a description of a type, including its bounds."""
    return _type_name(msgspec.inspect.type_info(annotation))


def _type_name(kind: msgspec.inspect.Type) -> str:
    if isinstance(kind, msgspec.inspect.Metadata):
        return _type_name(kind.type)
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
    if kind.gt is not None:
        return f", above {kind.gt:g}" + (f", to {kind.le:g}" if kind.le is not None else "")
    return ""
