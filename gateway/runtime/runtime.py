"""Compiles a document into the immutable runtime that requests read."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec

from gateway.config.document import BackendConfig, Document
from gateway.config.load import digest, load_folder
from gateway.types import BackendId, Endpoint, RegionName

NO_EPOCHS: Mapping[str, int] = MappingProxyType({})


class Runtime(msgspec.Struct, frozen=True, kw_only=True):
    """One generation of the configuration; a request reads one and keeps it to its end."""

    generation: int
    digest: str
    document: Document
    endpoints: tuple[Endpoint, ...]
    epochs: Mapping[str, int] = NO_EPOCHS
    """Cache epochs by `tenant:<id>` and `model:<name>`; what is absent is 0."""
    lineage: str = ""
    """The lineage of the epochs, part of every cache key. It changes when epochs were lost or could
    not be read, so that no purged entry is found."""


def compile_runtime(document: Document, generation: int, epochs: Mapping[str, int]) -> Runtime:
    """Return `document` compiled: its endpoints in the order of preference of their regions."""
    endpoints = tuple(
        Endpoint(
            backend=BackendId(backend.id),
            region=RegionName(region.name),
            url=_url(backend),
            weight=backend.weight,
            overflow=pool.overflow,
            server_name=backend.server_name,
            dns=backend.dns,
        )
        for region in document.regions
        for pool in region.pools
        for backend in pool.backends
    )
    return Runtime(
        generation=generation,
        digest=digest(document),
        document=document,
        endpoints=endpoints,
        epochs=MappingProxyType(dict(epochs)),
    )


def _url(backend: BackendConfig) -> str:
    if not backend.dns:
        return backend.url.rstrip("/")
    return f"{'https' if backend.tls else 'http'}://{backend.dns}"


def folder_runtime(folder: Path, placement: Path | None = None) -> Runtime:
    """Return the folder's document as generation 0, which is served until one is published.

    Raises:
        ConfigurationError: the folder holds no valid document.
    """
    return compile_runtime(load_folder(folder, placement=placement), 0, NO_EPOCHS)
