"""Opens the places that hold repositories as artifacts: folders, buckets of S3, registries."""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import msgspec

from backends.model_tools.syncing.manifest import SyncProblem

_TAG = "latest"
_FORMS = (
    "`s3://bucket/prefix`, `oci://registry/name:tag` or `file:///folder`, each with "
    "`@sha256:...` behind it for one manifest"
)


class ArtifactStore(Protocol):
    """Keeps manifests and blobs by digest. Calls block, and raise `SyncProblem`."""

    def manifest(self, reference: str) -> tuple[str, bytes]:
        """Return a manifest by its tag or digest, and the digest that its content should have."""
        ...

    def blob(self, digest: str, start: int = 0) -> Iterator[bytes]:
        """Yield the content of a blob from byte `start` on; what is yielded is not verified.

        A store that cannot begin there yields nothing.
        """
        ...

    def has(self, digest: str, size: int) -> bool:
        """Return whether a blob is there, as large as it should be; it is not read."""
        ...

    def put_blob(self, digest: str, path: Path) -> None:
        """Store the content of a file, as a whole."""
        ...

    def put_manifest(self, digest: str, content: bytes, tag: str) -> None:
        """Store a manifest, and have `tag` name it from now on."""
        ...

    def close(self) -> None:
        """Close connections."""
        ...


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Names an artifact: where it is, and the tag or digest of its manifest."""

    scheme: str
    host: str
    path: str
    reference: str

    @property
    def is_pinned(self) -> bool:
        """Whether it is one manifest for ever."""
        return self.reference.startswith("sha256:")


def read_source(text: str) -> Source:
    """Return what a URL names.

    Raises:
        SyncProblem: it has another form.
    """
    address, at, digest = text.partition("@sha256:")
    parts = urlsplit(address)
    path, reference = parts.path, _TAG
    if parts.scheme == "oci":
        path, _, tag = path.partition(":")
        reference = tag or _TAG
    if at:
        reference = f"sha256:{digest}"
    is_complete = bool(parts.netloc if parts.scheme in ("s3", "oci") else path.startswith("/"))
    named = path.strip("/") or parts.scheme == "s3"
    if parts.scheme not in ("s3", "oci", "file") or not (is_complete and named):
        raise SyncProblem(f"`{_without_password(text)}` is no place of models: it is {_FORMS}")
    if parts.username is not None or parts.query or parts.fragment:
        raise SyncProblem(
            f"`{_without_password(text)}`: credentials and parameters are no part of the address; "
            "they come from the environment"
        )
    return Source(scheme=parts.scheme, host=parts.netloc, path=path, reference=reference)


def open_store(source: Source, *, plain_http: bool = False) -> ArtifactStore:
    """Return the store of a source.

    Raises:
        SyncProblem: a library is missing.
    """
    # Each needs a library of its own.
    if source.scheme == "oci":
        from backends.model_tools.syncing.registry import RegistryStore  # noqa: PLC0415

        return RegistryStore(source.host, source.path.strip("/"), plain_http=plain_http)
    from backends.model_tools.syncing.layout import FolderObjects, LayoutStore  # noqa: PLC0415

    if source.scheme == "file":
        return LayoutStore(FolderObjects(Path(source.path)))
    from backends.model_tools.syncing.bucket import S3Objects  # noqa: PLC0415

    return LayoutStore(S3Objects(source.host, source.path))


def _without_password(text: str) -> str:
    scheme, separator, rest = text.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2] if '@sha256:' not in rest else rest}"[:200]
