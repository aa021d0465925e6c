"""The compiled form of a document: what requests read, immutable."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec

from gateway.config.document import BackendEntry, Document
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
    """Part of every cache key, so that nothing is found that may have been purged: the name of this
    history of epochs; another after they were lost, or where they could not be asked for."""


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


def _url(backend: BackendEntry) -> str:
    if not backend.dns:
        return backend.url.rstrip("/")
    return f"{'https' if backend.tls else 'http'}://{backend.dns}"


def folder_runtime(folder: Path, placement: Path | None = None) -> Runtime:
    """Return the folder's document as generation 0: what is served until Redis knows better.

    Raises:
        ConfigurationError: the folder holds no valid document.
    """
    return compile_runtime(load_folder(folder, placement=placement), 0, NO_EPOCHS)
