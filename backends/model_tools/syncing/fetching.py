"""Fetches blobs into files, and verifies them: a fetch that was cut goes on where it ended."""

import hashlib
import os
import shutil
import time
from pathlib import Path

from backends.model_tools.syncing.manifest import (
    Descriptor,
    Manifest,
    SyncProblem,
    for_this_machine,
    read_manifest,
    sha256,
)
from backends.model_tools.syncing.stores import ArtifactStore
from backends.repository.sync_record import FileDigest

_MOST_NESTED = 3
_PATIENCE = 60.0
_LEAST_RATE = 256 << 10
"""How long a blob may take: seconds, and one more for so many bytes."""


def fetch_manifest(store: ArtifactStore, reference: str) -> tuple[str, Manifest]:
    """Return the manifest that a reference leads to, and its digest.

    Of an image for several machines the one for this machine is taken.

    Raises:
        SyncProblem: it is missing, altered or no manifest.
    """
    for _ in range(_MOST_NESTED):
        digest, content = store.manifest(reference)
        if sha256(content) != digest:
            raise SyncProblem(
                f"the manifest {digest} was altered or cut: its digest is {sha256(content)}"
            )
        manifest = read_manifest(content, f"the manifest {digest}")
        if not manifest.manifests:
            return digest, manifest
        reference = for_this_machine(manifest.manifests).digest
    raise SyncProblem("its manifests name further ones without end")


def fetch_blob(store: ArtifactStore, blob: Descriptor, folder: Path, what: str) -> Path:
    """Return a file of `folder` with the verified content of a blob; `what` names it in messages.

    Raises:
        SyncProblem: it is missing, truncated or altered, or cannot be reached.
        OSError: the disk is full, for example.
    """
    path = folder / blob.digest.partition(":")[2]
    if path.exists():
        # A run that failed left it, and a file in place may be a second name of it.
        if digest_file(path) == FileDigest(digest=blob.digest, size=blob.size):
            return path
        path.unlink()
    part = path.with_suffix(".part")
    resumed = part.exists()
    missing, free = blob.size - _size(part), shutil.disk_usage(folder).free
    if missing > free:
        raise SyncProblem(f"{what} lacks {missing} bytes, and the disk of {folder} has {free} free")
    problem = _append(store, blob, part, what)
    if problem and resumed:
        # What was there before may be what is wrong.
        problem = _append(store, blob, part, what)
    if problem:
        raise SyncProblem(
            f"{what} {problem}; nothing of it is served. Push it again with `--force`"
        )
    part.rename(path)
    return path


def _append(store: ArtifactStore, blob: Descriptor, part: Path, what: str) -> str:
    """Fetch what `part` lacks; return what is wrong with it then, and remove it."""
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
                        f"{what} arrives too slowly: {size} of {blob.size} bytes; the next try "
                        "goes on there"
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
    """Return digest and size of a file's content."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return FileDigest(digest=f"sha256:{digest}", size=file.tell())
