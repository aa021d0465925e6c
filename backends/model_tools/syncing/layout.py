"""Stores artifacts in the OCI image layout: `index.json`, and blobs by digest.

Both are objects: files of a folder, or objects in an S3 bucket.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from sluicegate.backends.model_tools.syncing.manifest import (
    INDEX,
    MANIFEST,
    REF,
    Descriptor,
    Manifest,
    SyncProblem,
    for_this_machine,
    read_document,
    read_manifest,
)
from sluicegate.wire.installing import install_command

_INDEX = "index.json"
_CHUNK = 1 << 20
# The library yields only whole chunks. With small chunks, a slow download is noticed sooner.
_S3_CHUNK = 64 << 10
_MISSING = frozenset({"NoSuchKey", "404", "NotFound"})


class ObjectMissing(Exception):
    """The object to read does not exist."""


class Objects(Protocol):
    """Stores objects by name. Methods block; a failure raises `SyncProblem`."""

    where: str
    """The address of the objects, for messages."""

    def read(self, name: str, start: int = 0) -> Iterator[bytes]:
        """Yield the content from byte `start` on.

        Raises:
            ObjectMissing: there is no such object.
        """
        ...

    def size(self, name: str) -> int | None:
        """Return the size of an object in bytes; `None` if the object does not exist."""
        ...

    def write(self, name: str, content: bytes | Path) -> None:
        """Store an object atomically; a `Path` names a file with the content."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


class LayoutStore:
    """Implements `ArtifactStore` on top of `Objects`."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def manifest(self, reference: str) -> tuple[str, bytes]:
        """Return a manifest; see `ArtifactStore`."""
        where = self._objects.where
        digest = reference
        if not reference.startswith("sha256:"):
            named = self._named(reference)
            if not named:
                raise SyncProblem(f"{where}: `{_INDEX}` has no manifest `{reference}`")
            digest = for_this_machine(named).digest
        return digest, read_document(self.blob(digest), f"{where}: the manifest {digest}")

    def blob(self, digest: str, start: int = 0) -> Iterator[bytes]:
        """Yield a blob; see `ArtifactStore`."""
        try:
            yield from self._objects.read(_blob(digest), start)
        except ObjectMissing:
            raise SyncProblem(
                f"{self._objects.where}: the object `{_blob(digest)}` is missing; "
                "push the repository again"
            ) from None

    def has(self, digest: str, size: int) -> bool:
        """Return whether a blob exists; see `ArtifactStore`."""
        return self._objects.size(_blob(digest)) == size

    def put_blob(self, digest: str, path: Path) -> None:
        """Store a blob; see `ArtifactStore`."""
        self._objects.write(_blob(digest), path)

    def put_manifest(self, digest: str, content: bytes, tag: str) -> None:
        """Store a manifest; see `ArtifactStore`. Manifests with other tags are kept."""
        try:
            others = [each for each in self._index().manifests if _ref(each) != tag]
        except ObjectMissing:
            others = []
        self._objects.write(_blob(digest), content)
        self._objects.write("oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        own = Descriptor(
            media_type=MANIFEST, digest=digest, size=len(content), annotations={REF: tag}
        )
        index = Manifest(media_type=INDEX, manifests=[*others, own])
        # The index comes last, so that everything it names exists.
        self._objects.write(_INDEX, index.encode())

    def close(self) -> None:
        """Close the connections; see `Objects`."""
        self._objects.close()

    def _index(self) -> Manifest:
        where = f"{self._objects.where}/{_INDEX}"
        return read_manifest(read_document(self._objects.read(_INDEX), where), where)

    def _named(self, reference: str) -> list[Descriptor]:
        """Return the manifests with the reference's tag.

        If there are none, return the manifests without a tag.
        """
        try:
            found = self._index().manifests
        except ObjectMissing:
            raise SyncProblem(
                f"{self._objects.where}/{_INDEX} is missing, so the files have no digests; write "
                "the source with `sluicegate models push`"
            ) from None
        tagged = [each for each in found if _ref(each) == reference]
        return tagged or [each for each in found if not _ref(each)]


class FolderObjects:
    """Implements `Objects` with files in a folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.where = f"file://{root}"

    def read(self, name: str, start: int = 0) -> Iterator[bytes]:
        """Yield a file; see `Objects`."""
        try:
            with (self._root / name).open("rb") as file:
                file.seek(start)
                while chunk := file.read(_CHUNK):
                    yield chunk
        except FileNotFoundError:
            raise ObjectMissing(name) from None
        except OSError as error:
            raise SyncProblem(f"{self.where}/{name}: cannot be read: {error.strerror}") from None

    def size(self, name: str) -> int | None:
        """Return the size of a file; see `Objects`."""
        path = self._root / name
        return path.stat().st_size if path.is_file() else None

    def write(self, name: str, content: bytes | Path) -> None:
        """Write a file; see `Objects`."""
        path = self._root / name
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Path):
                shutil.copyfile(content, draft)
            else:
                draft.write_bytes(content)
            draft.replace(path)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise SyncProblem(f"{path}: cannot be written: {error.strerror}") from None

    def close(self) -> None:
        """Do nothing; see `Objects`."""


class _BeyondTheEnd(Exception):
    """A read begins after the last byte of an object."""


class S3Objects:
    """Implements `Objects` with the objects below `prefix` in `bucket`.

    Credentials, region and endpoint come from the environment, as for other AWS programs.

    Raises:
        SyncProblem: boto3 is not installed.
    """

    def __init__(self, bucket: str, prefix: str) -> None:
        try:
            import boto3  # noqa: PLC0415 - an extra
            from botocore.config import Config  # noqa: PLC0415
        except ImportError as error:
            raise SyncProblem(
                f"models in S3 need the package `{error.name}`; run {install_command('models')}"
            ) from None
        own = Config(connect_timeout=5, read_timeout=30, retries={"max_attempts": 4})
        self._bucket = bucket
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self.where = f"s3://{bucket}/{self._prefix}".rstrip("/")
        with self._translated(""):
            self._client: Any = boto3.client("s3", config=own)

    def read(self, name: str, start: int = 0) -> Iterator[bytes]:
        """Yield an object; see `Objects`."""
        with contextlib.suppress(_BeyondTheEnd), self._translated(name):
            # An empty object has no byte range, so a read from byte 0 asks for no range.
            own = {"Range": f"bytes={start}-"} if start else {}
            found = self._client.get_object(Bucket=self._bucket, Key=self._prefix + name, **own)
            yield from found["Body"].iter_chunks(_S3_CHUNK)

    def size(self, name: str) -> int | None:
        """Return the size of an object; see `Objects`."""
        try:
            with self._translated(name):
                found = self._client.head_object(Bucket=self._bucket, Key=self._prefix + name)
        except ObjectMissing:
            return None
        return int(found["ContentLength"])

    def write(self, name: str, content: bytes | Path) -> None:
        """Store an object; see `Objects`."""
        with self._translated(name):
            if isinstance(content, Path):
                self._client.upload_file(str(content), self._bucket, self._prefix + name)
            else:
                self._client.put_object(Bucket=self._bucket, Key=self._prefix + name, Body=content)

    def close(self) -> None:
        """Close the connections; see `Objects`."""
        self._client.close()

    @contextlib.contextmanager
    def _translated(self, name: str) -> Iterator[None]:
        from boto3.exceptions import Boto3Error  # noqa: PLC0415 - as above
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

        where = f"{self.where}/{name}".rstrip("/")
        try:
            yield
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            if code in _MISSING:
                raise ObjectMissing(name) from None
            if code == "InvalidRange":
                raise _BeyondTheEnd from None
            raise SyncProblem(f"{where}: the storage refused the request: {code}") from None
        except (BotoCoreError, Boto3Error, OSError) as error:
            reason = type(error).__name__
            raise SyncProblem(f"{where}: the storage cannot be reached: {reason}") from None


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _ref(descriptor: Descriptor) -> str:
    return (descriptor.annotations or {}).get(REF, "")
