"""Reads YAML texts into a validated `Document`."""

import hashlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from sluicegate.gateway.config import checks
from sluicegate.gateway.config.document import Document, RegionConfig
from sluicegate.gateway.config.pools import explain_unassigned, unassigned_models
from sluicegate.gateway.config.shape import SchemaViolation, shape
from sluicegate.gateway.config.sources import DocumentSource, Sources, read_folder, read_source
from sluicegate.gateway.config.tree import Tree, parse
from sluicegate.gateway.errors import ConfigurationError
from sluicegate.wire.settings import default_of

T = TypeVar("T")
WORKER_BASE_BYTES = 256 * 1024 * 1024
"""The memory of a worker without its cache. This is more than was ever measured."""


class PlacedBackends(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a placement file: regions that replace the regions of the configuration."""

    regions: tuple[RegionConfig, ...] = ()


class ParsedDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a valid configuration document, its YAML texts, and each value's position in them."""

    sources: tuple[DocumentSource, ...]
    document: Document
    digest: str
    """The result of the function `digest` for the document."""
    tree: Tree


def load_folder(folder: Path, *, placement: Path | None = None) -> Document:
    """Return the configuration document in `folder`.

    If `placement` is given, the regions in that file replace the document's regions.

    Raises:
        ConfigurationError: the document is invalid. The error names the file, line and field
            of the first problem.
    """
    return load_sources(read_folder(folder), placement=placement)


def load_sources(sources: Sources, *, placement: Path | None = None) -> Document:
    """Return the document from all `sources`; see `parse_sources`."""
    return parse_sources(sources, placement=placement).document


def parse_sources(sources: Sources, *, placement: Path | None = None) -> ParsedDocument:
    """Return the configuration document that all `sources` (YAML texts) form together.

    Each section must be in one text only. If `placement` is given, the regions in that file replace
    the document's regions.

    Raises:
        ConfigurationError: the document is invalid. The error names the file, line and field
            of the first problem.
    """
    joined = _join(sources)
    if placement is not None:
        overlay = parse(read_source(placement))
        _shape(overlay, PlacedBackends)
        joined = Tree(values=joined.values | overlay.values, places=joined.places | overlay.places)
    document = _shape(joined, Document)
    for finding in checks.findings(document):
        raise joined.error(finding.path, finding.detail)
    return ParsedDocument(
        sources=tuple(sources), document=document, digest=digest(document), tree=joined
    )


def check_models(
    parsed: ParsedDocument, known: Collection[str], explain: Callable[[str], str]
) -> None:
    """Refuse a configuration document that names an unknown model.

    A model is unknown if `known` does not contain it and the document does not mark it as planned.
    `explain` returns the error message for the name of a model.

    Raises:
        ConfigurationError: there is an unknown model. The error names the file, line and
            field of the first one.
    """
    for path, name in checks.unknown_models(parsed.document, known):
        raise parsed.tree.error(path, explain(name))


def check_pools(parsed: ParsedDocument, served: Collection[str]) -> None:
    """Refuse a configuration document if one of the models in `served` has no pool of backends.

    Raises:
        ConfigurationError: there is such a model. The error names the first one.
    """
    for name in unassigned_models(parsed.document, sorted(served)):
        raise parsed.tree.error(("regions",), explain_unassigned(name))


def check_labels(parsed: ParsedDocument, known: Mapping[str, Collection[str]]) -> None:
    """Refuse labels of classifiers that a model does not have. `known` maps models to their labels.

    Raises:
        ConfigurationError: there is such a label. The error names the first one, and the labels
            that the model has.
    """
    for path, detail in checks.unknown_labels(parsed.document, known):
        raise parsed.tree.error(path, detail)


def check_memory(parsed: ParsedDocument, limit: int) -> None:
    """Refuse a document if a worker with a full cache would exceed its memory limit.

    Raises:
        ConfigurationError: the cache is too large. The error names the file, line and field.
    """
    cache = parsed.document.cache
    if cache.memory_enabled and 0 < limit < cache.memory_bytes + WORKER_BASE_BYTES:
        raise parsed.tree.error(
            ("cache", "memory_bytes"),
            "a worker with a full cache would exceed `SLUICEGATE_MEMORY_LIMIT_BYTES`"
            f" ({limit}) and be restarted; set that variable to at least"
            f" {cache.memory_bytes + WORKER_BASE_BYTES}, or choose a smaller cache",
        )


def digest(document: Document) -> str:
    """Return a digest of the document's values, as 16 hexadecimal digits.

    Fields that have their defaults do not affect the digest. If a later version adds a field, the
    digest of an old document therefore stays the same.
    """
    encoded = msgspec.json.encode(without_defaults(document), order="sorted")
    return hashlib.blake2b(encoded, digest_size=8).hexdigest()


def without_defaults(value: Any) -> Any:  # Any: a value of any field
    """Return a value of a document as dicts and lists.

    Fields that have their defaults are left out. The field that tells the kind of a value stays.
    """
    if isinstance(value, msgspec.Struct):
        config, fields = value.__struct_config__, msgspec.structs.fields(value)
        kind = {config.tag_field: config.tag} if config.tag_field else {}
        pairs = ((field, getattr(value, field.name)) for field in fields)
        return kind | {
            field.name: without_defaults(v) for field, v in pairs if v != default_of(field)
        }
    if isinstance(value, dict):
        return {name: without_defaults(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [without_defaults(part) for part in value]
    return value


def explain(error: ConfigurationError) -> str:
    """Return `error` as one line, such as `config/gateway.yaml:12: models.x.cache_ttl: TEXT`."""
    place = ""
    if error.file is not None:
        place = error.file if error.line is None else f"{error.file}:{error.line}"
    return ": ".join(part for part in (place, error.field, error.detail) if part)


def _join(sources: Sources) -> Tree:
    joined = Tree(values={}, places={})
    for source in sources:
        parsed = parse(source)
        for section in parsed.values:
            if section in joined.values:
                other = joined.places[section,].file
                raise parsed.error(
                    (section,), f"the section is also in `{other}`; keep one of them"
                )
        joined.values.update(parsed.values)
        joined.places.update(parsed.places)
    return joined


def _shape(parsed: Tree, kind: type[T]) -> T:
    try:
        return shape(parsed.values, kind)
    except SchemaViolation as error:
        raise parsed.error(error.path, error.detail) from error
