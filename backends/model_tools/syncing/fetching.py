"""Fetches blobs into files and verifies them; an interrupted fetch continues where it stopped."""

import hashlib
import os
import shutil
import time
from pathlib import Path

from sluicegate.backends.model_tools.syncing.manifest import (
    Descriptor,
    Manifest,
    SyncProblem,
    for_this_machine,
    read_manifest,
    sha256,
)
from sluicegate.backends.model_tools.syncing.stores import ArtifactStore
from sluicegate.backends.repository.sync_record import FileDigest

_MOST_NESTED = 3
_PATIENCE = 60.0
_LEAST_RATE = 256 << 10
"""A fetch may take `_PATIENCE` seconds, and one second more for each of this many bytes."""


def fetch_manifest(store: ArtifactStore, reference: str) -> tuple[str, Manifest]:
    """Return the digest and the content of the manifest that `reference` identifies.

    If the reference identifies an image for several platforms, the manifest is the one for this
    machine.

    Raises:
        SyncProblem: the manifest is missing, altered or invalid.
    """
    for _ in range(_MOST_NESTED):
        digest, content = store.manifest(reference)
        if sha256(content) != digest:
            raise SyncProblem(
                f"the manifest {digest} was altered or truncated: its digest is {sha256(content)}"
            )
        manifest = read_manifest(content, f"the manifest {digest}")
        if not manifest.manifests:
            return digest, manifest
        reference = for_this_machine(manifest.manifests).digest
    raise SyncProblem("the manifests are nested too deep")


def fetch_blob(store: ArtifactStore, blob: Descriptor, folder: Path, what: str) -> Path:
    """Return a file in `folder` with the verified content of a blob.

    `what` describes the blob in error messages.

    Raises:
        SyncProblem: the blob is missing, truncated or altered, or cannot be reached.
        OSError: the disk is full, for example.
    """
    path = folder / blob.digest.partition(":")[2]
    if path.exists():
        # An earlier run left the file. It may be hard-linked to a file in the repository.
        if digest_file(path) == FileDigest(digest=blob.digest, size=blob.size):
            return path
        path.unlink()
    part = path.with_suffix(".part")
    resumed = part.exists()
    missing, free = blob.size - _size(part), shutil.disk_usage(folder).free
    if missing > free:
        raise SyncProblem(f"{what} needs {missing} bytes, but the disk of {folder} has {free} free")
    problem = _append(store, blob, part, what)
    if problem and resumed:
        # The part that an earlier run left may be wrong, so the whole blob is fetched once more.
        problem = _append(store, blob, part, what)
    if problem:
        raise SyncProblem(
            f"{what} {problem}; the repository is unchanged; push it again with `--force`"
        )
    part.rename(path)
    return path


def _append(store: ArtifactStore, blob: Descriptor, part: Path, what: str) -> str:
    """Fetch the rest of `part`; if its content is wrong, remove the file and return the reason."""
    with part.open("ab+") as file:
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256")
        size = file.seek(0, os.SEEK_END)
        if size < blob.size:
            deadline = time.monotonic() + _PATIENCE + (blob.size - size) / _LEAST_RATE
            for chunk in store.blob(blob.digest, size):
                size += len(chunk)
                if size > blob.size:
                    break
                file.write(chunk)
                digest.update(chunk)
                if time.monotonic() > deadline:
                    raise SyncProblem(
                        f"{what} arrives too slowly: {size} of {blob.size} bytes; the next sync "
                        "continues there"
                    )
        file.flush()
        os.fsync(file.fileno())
    found = f"sha256:{digest.hexdigest()}"
    if size == blob.size and found == blob.digest:
        return ""
    part.unlink()
    if size != blob.size:
        more = "more than " if size > blob.size else ""
        return f"is truncated or altered: {more}{min(size, blob.size)} of {blob.size} bytes"
    return f"was altered: its digest is {found}, not {blob.digest}"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def digest_file(path: Path) -> FileDigest:
    """Return the digest and size of a file's content."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return FileDigest(digest=f"sha256:{digest}", size=file.tell())
