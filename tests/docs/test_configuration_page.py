"""docs/configuration.md tells of every field and variable, with the default that the code has."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec
import pytest
import yaml

from backends.settings import BackendSettings
from gateway.config.document import Document
from gateway.settings import Settings
from tests.docs.tables import defaults, page

DOCUMENTED = defaults(page("docs/configuration.md"))
REQUIRED = "required"


def document_fields(kind: Any, path: str) -> Iterator[tuple[str, object]]:
    """Yield each field below `kind` as the page writes it, with its default."""
    if get_origin(kind) is tuple:
        yield from document_fields(get_args(kind)[0], f"{path}[]")
    elif get_origin(kind) is dict:
        yield from document_fields(get_args(kind)[1], f"{path}.*")
    elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        for field in msgspec.structs.fields(kind):
            name = f"{path}.{field.name}" if path else field.name
            below = list(document_fields(field.type, name))
            if path and not isinstance(field.default, msgspec.Struct):
                yield name, REQUIRED if field.required else default(field)
            yield from below


def default(field: msgspec.structs.FieldInfo) -> object:
    """Return the default of a field, that of a table too."""
    made = field.default_factory
    return field.default if made is msgspec.NODEFAULT else made()


# A rule is written once for tenants, keys and models alike.
FIELDS = {
    name.replace("limits.tenant[]", "limits.*[]").replace("limits.key[]", "limits.*[]"): default
    for name, default in document_fields(Document, "")
    if not name.startswith("models.*.limits[]")
}


def variables(kind: type[msgspec.Struct], prefix: str) -> dict[str, object]:
    return {prefix + field.name.upper(): field.default for field in msgspec.structs.fields(kind)}


VARIABLES = {
    **variables(Settings, "SLUICEGATE_"),
    **variables(BackendSettings, "SLUICEGATE_BACKEND_"),
    # Two settings share this name: each side of the wire reads it.
    "SLUICEGATE_BACKEND_TOKEN": "",
}


@pytest.mark.parametrize("field", sorted(FIELDS))
def test_a_field_of_the_document_is_documented_with_its_default(field: str) -> None:
    default = FIELDS[field]

    written = DOCUMENTED[field]

    if isinstance(default, tuple) and default:
        assert written != REQUIRED  # a list that the text describes
    else:
        assert _equal(written, [] if default == () else default)


@pytest.mark.parametrize("variable", sorted(VARIABLES))
def test_a_variable_is_documented_with_its_default(variable: str) -> None:
    default = VARIABLES[variable]

    written = DOCUMENTED[variable]

    if default in ("", None):
        assert written == "unset"
    else:
        assert _equal(written, str(default) if isinstance(default, Path) else default)


def test_the_page_documents_nothing_that_does_not_exist() -> None:
    known = FIELDS.keys() | VARIABLES.keys()

    assert {name for name in DOCUMENTED if "." in name or name.isupper()} <= known


def _equal(written: str, default: object) -> bool:
    if isinstance(default, str):
        return written.strip('"') == default
    return bool(yaml.safe_load(written) == default)
