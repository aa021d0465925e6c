"""Declares settings, and reads them from environment variables.

A field of a struct declares a setting: its type has the unit and the bounds, the docstring below it
the meaning. Checks, JSON schemas and the reference of the configuration are made from the fields.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

S = TypeVar("S", bound=msgspec.Struct)


def unit(name: str) -> Meta:
    """Return a mark of a number's type that says what the number counts."""
    return Meta(extra={"unit": name})


def takes_effect(when: str) -> Meta:
    """Return a mark of a field whose new value does not apply as soon as it is loaded."""
    return Meta(extra={"takes_effect": when})


def stated(**bounds: object) -> Meta:
    """Return bounds for the JSON schema of a field whose checks are elsewhere."""
    return Meta(extra_json_schema=bounds)


SECONDS = unit("s")
BYTES = unit("bytes")
COUNT = unit("count")
Seconds = Annotated[float, SECONDS, Meta(ge=0)]
PositiveSeconds = Annotated[float, SECONDS, Meta(gt=0)]
Duration = Annotated[Seconds, Meta(le=1e9)]
"""A time that can be converted to nanoseconds, unlike infinity."""
Bytes = Annotated[int, BYTES, Meta(ge=0)]
PositiveBytes = Annotated[int, BYTES, Meta(ge=1)]
Count = Annotated[int, COUNT, Meta(ge=0)]
PositiveCount = Annotated[int, COUNT, Meta(ge=1)]
Share = Annotated[float, unit("share"), Meta(ge=0, le=1)]
Port = Annotated[int, unit("port"), Meta(ge=0, le=65_535)]
FileDescriptor = Annotated[int, unit("file descriptor"), Meta(ge=0)]
HeaderSecret = Annotated[str, Meta(extra={"is_header_secret": True})]
"""A secret that is sent in a header. Errors do not show it."""


def default_of(field: msgspec.structs.FieldInfo) -> Any:  # Any: a value of any type
    """Return the default of a field, or `NODEFAULT`."""
    made = field.default_factory
    return field.default if made is msgspec.NODEFAULT else made()


class InvalidVariable(ValueError):
    """An environment variable has an invalid value. The message names the variable."""


def read_variables(
    kind: type[S],
    prefix: str,
    environment: Mapping[str, str],
    *,
    defaults: Mapping[str, object] = {},
    overrides: Mapping[str, object] = {},
) -> S:
    """Return the settings that `environment` has.

    The name of a field's variable is `prefix` and the field's name in capitals. `defaults` apply to
    fields whose variables are not set, `overrides` to all fields.

    Raises:
        InvalidVariable: a value is invalid.
    """
    values = dict(defaults)
    for field in msgspec.structs.fields(kind):
        variable = prefix + field.name.upper()
        if (text := environment.get(variable)) is not None:
            values[field.name] = _value(field, variable, text)
    try:
        return msgspec.convert(values | dict(overrides), kind, dec_hook=_path)
    except msgspec.ValidationError as error:
        raise InvalidVariable(f"a setting is invalid: {error}") from None


def _value(field: msgspec.structs.FieldInfo, variable: str, text: str) -> object:
    if field.type == HeaderSecret and (text != text.strip() or not text.isprintable()):
        raise InvalidVariable(
            f"`{variable}` cannot be sent in a header; remove line breaks, and spaces at its ends"
        )
    try:
        return msgspec.convert(text, field.type, strict=False, dec_hook=_path)
    except msgspec.ValidationError as error:
        raise InvalidVariable(f"`{variable}` is invalid: {error}") from None


def _path(kind: type, value: object) -> object:
    """Convert to `Path`, the only type of a setting that msgspec does not support."""
    return Path(value) if kind is Path and isinstance(value, str) else value


def unknown_variables(
    kind: type[msgspec.Struct], prefix: str, environment: Iterable[str], others: Iterable[str] = ()
) -> Iterator[str]:
    """Yield a warning for each variable with `prefix` that is neither a field's nor in `others`."""
    known = [*(prefix + name.upper() for name in kind.__struct_fields__), *others]
    for variable in sorted(environment):
        if variable.startswith(prefix) and variable not in known:
            nearest = difflib.get_close_matches(variable.upper(), known, n=1)
            hint = f"; did you mean `{nearest[0]}`?" if nearest else ""
            yield f"`{variable}` is not a setting and is ignored{hint}"
