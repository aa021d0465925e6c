"""Opens the stores of artifacts: folders, S3 buckets and registries."""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import msgspec

from sluicegate.backends.model_tools.syncing.layout import FolderObjects, LayoutStore, S3Objects
from sluicegate.backends.model_tools.syncing.manifest import SyncProblem

_TAG = "latest"
_FORMS = (
    "`s3://bucket/prefix`, `oci://registry/name:tag` or `file:///folder`; `@sha256:...` after it "
    "selects one manifest"
)


class ArtifactStore(Protocol):
    """Stores manifests and blobs by digest. Methods block; a failure raises `SyncProblem`."""

    def manifest(self, reference: str) -> tuple[str, bytes]:
        """Return the expected digest and the content of the manifest with a tag or digest."""
        ...

    def blob(self, digest: str, start: int = 0) -> Iterator[bytes]:
        """Yield the content of a blob from byte `start` on, without verifying it.

        If a store cannot start at that byte, it yields nothing.
        """
        ...

    def has(self, digest: str, size: int) -> bool:
        """Return whether a blob of this size exists; its content is not read."""
        ...

    def put_blob(self, digest: str, path: Path) -> None:
        """Store the content of a file atomically."""
        ...

    def put_manifest(self, digest: str, content: bytes, tag: str) -> None:
        """Store a manifest, and point `tag` to it."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Identifies an artifact: its store, and the tag or digest of its manifest."""

    scheme: str
    host: str
    path: str
    reference: str

    @property
    def is_pinned(self) -> bool:
        """Whether `reference` is a digest, so that the artifact never changes."""
        return self.reference.startswith("sha256:")


def read_source(text: str) -> Source:
    """Parse the URL of a source.

    Raises:
        SyncProblem: the URL has another form.
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
        raise SyncProblem(f"`{_without_password(text)}` is not a source; it must be {_FORMS}")
    if parts.username is not None or parts.query or parts.fragment:
        raise SyncProblem(
            f"`{_without_password(text)}`: a source must not have credentials or parameters; "
            "set credentials in the environment"
        )
    return Source(scheme=parts.scheme, host=parts.netloc, path=path, reference=reference)


def open_store(source: Source, *, plain_http: bool = False) -> ArtifactStore:
    """Return the store of a source.

    Raises:
        SyncProblem: a library is missing.
    """
    if source.scheme == "oci":
        # Imported late, because it needs a library.
        from sluicegate.backends.model_tools.syncing.registry import RegistryStore  # noqa: PLC0415

        return RegistryStore(source.host, source.path.strip("/"), plain_http=plain_http)
    if source.scheme == "file":
        return LayoutStore(FolderObjects(Path(source.path)))
    return LayoutStore(S3Objects(source.host, source.path))


def _without_password(text: str) -> str:
    scheme, separator, rest = text.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2] if '@sha256:' not in rest else rest}"[:200]
