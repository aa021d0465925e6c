"""Reads YAML texts into a checked `Document`."""

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gateway.config import checks, tree
from gateway.config.document import Document, RegionConfig
from gateway.config.shape import SchemaViolation, shape
from gateway.config.sources import DocumentSource, read_folder, read_source
from gateway.errors import ConfigurationError

T = TypeVar("T")
WORKER_BASE_BYTES = 256 * 1024 * 1024
"""Memory of a worker besides its cache; more than was ever measured."""


class PlacedBackends(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a placement file: regions that replace those of the document."""

    regions: tuple[RegionConfig, ...] = ()


def load_folder(folder: Path, *, placement: Path | None = None) -> Document:
    """Return the document of `folder`, with the regions of the `placement` file if there is one.

    Raises:
        ConfigurationError: the first thing that is wrong, with its file, line and field.
    """
    return load_sources(read_folder(folder), placement=placement)


def load_sources(sources: Sequence[DocumentSource], *, placement: Path | None = None) -> Document:
    """Return the document that `sources` make together; a section may stand in one of them only.

    Raises:
        ConfigurationError: the first thing that is wrong, with its file, line and field.
    """
    values, places = _join(sources)
    if placement is not None:
        overlay = tree.parse(read_source(placement))
        _shape(overlay.values, PlacedBackends, overlay.places)
        values = values | overlay.values
        places = places | overlay.places
    document = _shape(values, Document, places)
    for finding in checks.findings(document):
        raise _located(finding.path, finding.detail, places)
    return document


def check_models(
    sources: Sequence[DocumentSource], known: Collection[str], explain: Callable[[str], str]
) -> None:
    """Refuse a document that names a model which is neither `known` nor planned.

    Raises:
        ConfigurationError: what `explain` says of the first, with its file, line and field.
    """
    values, places = _join(sources)
    document = _shape(values, Document, places)
    for path, name in checks.unknown_models(document, known):
        raise _located(path, explain(name), places)


def check_memory(sources: Sequence[DocumentSource], limit: int) -> None:
    """Refuse a document whose cache, once full, would take a worker beyond `limit` bytes (0: none).

    Raises:
        ConfigurationError: it would, with the file, line and field.
    """
    values, places = _join(sources)
    cache = _shape(values, Document, places).cache
    if cache.memory_enabled and 0 < limit < cache.memory_bytes + WORKER_BASE_BYTES:
        raise _located(
            ("cache", "memory_bytes"),
            "a worker whose cache is full would take more memory than"
            f" `SLUICEGATE_MEMORY_LIMIT_BYTES` ({limit}) allows, and be replaced; make that"
            f" {cache.memory_bytes + WORKER_BASE_BYTES} at least, or this less",
            places,
        )


def load_text(text: str, *, name: str = "document", placement: Path | None = None) -> Document:
    """Return the document of one text, such as a posted one.

    Raises:
        ConfigurationError: the first thing that is wrong, with its line and field.
    """
    return load_sources((DocumentSource(name=name, text=text),), placement=placement)


def digest(document: Document) -> str:
    """Return 16 hex digits that are equal where documents mean the same.

    Fields with their defaults are left out: a field that a later version adds changes no digest.
    """
    encoded = msgspec.json.encode(_without_defaults(document), order="sorted")
    return hashlib.blake2b(encoded, digest_size=8).hexdigest()


def _without_defaults(value: Any) -> Any:  # Any: whatever a document holds
    if isinstance(value, msgspec.Struct):
        fields = msgspec.structs.fields(value)
        pairs = ((field, getattr(value, field.name)) for field in fields)
        return {field.name: _without_defaults(v) for field, v in pairs if v != _default_of(field)}
    if isinstance(value, dict):
        return {name: _without_defaults(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_without_defaults(part) for part in value]
    return value


def _default_of(field: msgspec.structs.FieldInfo) -> Any:
    factory = field.default_factory
    return field.default if factory is msgspec.NODEFAULT else factory()


def explain(error: ConfigurationError) -> str:
    """Return `error` as one line: `config/gateway.yaml:12: models.x.cache_ttl: what is wrong`."""
    place = ""
    if error.file is not None:
        place = error.file if error.line is None else f"{error.file}:{error.line}"
    return ": ".join(part for part in (place, error.field, error.detail) if part)


def _join(
    sources: Sequence[DocumentSource],
) -> tuple[dict[str, object], dict[tree.Path, tree.SourcePosition]]:
    values: dict[str, object] = {}
    places: dict[tree.Path, tree.SourcePosition] = {}
    for source in sources:
        parsed = tree.parse(source)
        for section in parsed.values:
            if section in values:
                other = places[section,].file
                raise _located((section,), f"the section stands in `{other}` too", parsed.places)
        values |= parsed.values
        places |= parsed.places
    return values, places


def _shape(values: object, kind: type[T], places: Mapping[tree.Path, tree.SourcePosition]) -> T:
    try:
        return shape(values, kind)
    except SchemaViolation as error:
        raise _located(error.path, error.detail, places) from error


def _located(
    path: tree.Path, detail: str, places: Mapping[tree.Path, tree.SourcePosition]
) -> ConfigurationError:
    place = tree.place_of(places, path)
    return ConfigurationError(
        detail,
        file=None if place is None else place.file,
        line=None if place is None else place.line,
        field=tree.field_name(path),
    )
