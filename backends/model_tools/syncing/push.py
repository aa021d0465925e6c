"""Pushes a model repository to a store, from which `models sync` copies it."""

import tempfile
from collections.abc import Collection
from pathlib import Path

from sluicegate.backends.model_tools.syncing.fetching import digest_file
from sluicegate.backends.model_tools.syncing.manifest import (
    EMPTY,
    SyncProblem,
    check_path,
    check_repository,
    sha256,
    write_manifest,
)
from sluicegate.backends.model_tools.syncing.stores import ArtifactStore
from sluicegate.backends.repository.names import is_hidden


def push(
    root: Path, store: ArtifactStore, *, tag: str, models: Collection[str], force: bool = False
) -> str:
    """Store the files of `models` and a manifest; return the manifest's digest.

    If `models` is empty, the files of all models are stored. If the store already has a file with
    the same content and size, the file is sent again only with `force`.

    Raises:
        SyncProblem: a model does not exist, or the store cannot be written.
    """
    found = _repository(root, models)
    digests = {path: digest_file(file) for path, file in found.items()}
    stored: set[str] = set()
    for path, file in found.items():
        digest, size = digests[path].digest, digests[path].size
        if digest not in stored and (force or not store.has(digest, size)):
            store.put_blob(digest, file)
        stored.add(digest)
    content = write_manifest(digests)
    with tempfile.NamedTemporaryFile() as empty:
        empty.write(EMPTY)
        empty.flush()
        if force or not store.has(sha256(EMPTY), len(EMPTY)):
            store.put_blob(sha256(EMPTY), Path(empty.name))
    store.put_manifest(sha256(content), content, tag)
    return sha256(content)


def _repository(root: Path, models: Collection[str]) -> dict[str, Path]:
    if not root.is_dir():
        raise SyncProblem(f"the models directory `{root}` does not exist")
    found = {}
    for file in sorted(root.rglob("*")):
        path = file.relative_to(root).as_posix()
        model = path.partition("/")[0]
        if not file.is_file() or is_hidden(path) or path == model:
            continue
        if not models or model in models:
            check_path(path, str(root))
            found[path] = file
    missing = sorted(set(models) - {path.partition("/")[0] for path in found})
    if missing:
        raise SyncProblem(f"{root}: there is no model `{missing[0]}`")
    check_repository(found, str(root))
    return found
