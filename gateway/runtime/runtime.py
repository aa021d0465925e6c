"""Compiles a configuration document into a runtime: the immutable form that requests read."""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from sluicegate.gateway.config.document import BackendConfig, Document
from sluicegate.gateway.types import BackendId, Endpoint, RegionName

NO_EPOCHS: Mapping[str, int] = MappingProxyType({})


class Runtime(msgspec.Struct, frozen=True, kw_only=True):
    """Holds one generation of the configuration. A request uses the same runtime until its end."""

    generation: int
    document: Document
    endpoints: tuple[Endpoint, ...]
    epochs: Mapping[str, int] = NO_EPOCHS
    """The cache epochs, by `tenant:<id>` and `model:<name>`. A missing epoch is 0."""
    purge_history: str = ""
    """The id of the history of purges. It is a part of every cache key.

    It changes if epochs were lost or could not be read, so that purged entries are not found again.
    """
    published: float = 0.0
    """When the document was published, in seconds since 1970, or 0 if it was not published."""


def compile_runtime(
    document: Document,
    generation: int,
    epochs: Mapping[str, int] = NO_EPOCHS,
    purge_history: str = "",
    published: float = 0.0,
) -> Runtime:
    """Return the runtime of `document`, with endpoints in the order of their regions."""
    endpoints = tuple(
        Endpoint(
            backend=BackendId(backend.id),
            region=RegionName(region.name),
            url=_url(backend),
            weight=backend.weight,
            overflow=pool.overflow,
            server_name=backend.server_name,
            dns=backend.dns,
            models=pool.models,
        )
        for region in document.regions
        for pool in region.pools
        for backend in pool.backends
    )
    return Runtime(
        generation=generation,
        document=document,
        endpoints=endpoints,
        epochs=MappingProxyType(dict(epochs)),
        purge_history=purge_history,
        published=published,
    )


def _url(backend: BackendConfig) -> str:
    if not backend.dns:
        return backend.url.rstrip("/")
    return f"{'https' if backend.tls else 'http'}://{backend.dns}"
