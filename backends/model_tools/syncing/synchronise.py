"""Copies a source to a repository: verifies every file, then renames revisions into place."""

import fcntl
import os
import re
import shutil
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

import msgspec

from sluicegate.backends.model_tools.syncing.archives import extract
from sluicegate.backends.model_tools.syncing.fetching import digest_file, fetch_blob, fetch_manifest
from sluicegate.backends.model_tools.syncing.manifest import (
    Descriptor,
    Manifest,
    SyncProblem,
    artifact_files,
    check_repository,
    revision_of,
)
from sluicegate.backends.model_tools.syncing.stores import ArtifactStore
from sluicegate.backends.repository.last_good import read_last_good
from sluicegate.backends.repository.names import is_hidden
from sluicegate.backends.repository.publishing import WEIGHTS, link_or_copy
from sluicegate.backends.repository.sync_record import FILE, FileDigest, SyncRecord, read_record
from sluicegate.wire.folders import sync_folder

_STAGING = ".synchronising"
# Files that backends write into a model's folder.
_OF_BACKENDS = re.compile(
    r"\.(last-served|admitted|tuning|forms(-[a-z0-9]+)?|fallback|fp16)\.json(\.\d+)?|\.prepacked"
)
Files = Mapping[str, FileDigest]
_State = Mapping[str, tuple[int, int, int]]
"""Inode, size and modification time of each file."""


class SyncResult(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the digest of the manifest in place, and the paths that changed or were removed.

    A path is a revision, or a file beside the revisions.
    """

    digest: str
    changed: list[str] = []
    removed: list[str] = []


class Synchroniser:
    """Synchronises a repository, once or repeatedly.

    The first run verifies the digests of all files in place. Later runs verify only files that
    changed since the run before. A file with a wrong digest is fetched again.
    """

    def __init__(
        self,
        store: ArtifactStore,
        root: Path,
        *,
        name: str,
        prune: bool,
        models: Sequence[str] = ("*",),
    ) -> None:
        """`name` is the source, for the record and messages; `models` are patterns of model names.

        Without `prune`, a revision that the source no longer has is kept until a backend has served
        another revision of the model. A model that the source no longer has is kept for good.
        """
        self._store = store
        self._root = root
        self._name = name
        self._prune = prune
        self._models = list(models)
        self._verified: dict[str, tuple[Files, _State]] = {}

    def run(self, reference: str) -> SyncResult:
        """Fetch and verify all missing files, then put them in place.

        Raises:
            SyncProblem: a file of the source is missing, truncated or altered (then the repository
                is unchanged), or the repository cannot be written.
        """
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            with _only_one(self._root):
                try:
                    return self._run(reference)
                finally:
                    # Blobs are kept after a failure, and the next run continues with them.
                    for name in ("image", "staged"):
                        shutil.rmtree(self._root / _STAGING / name, ignore_errors=True)
        except OSError as error:
            place = error.filename or self._root
            raise SyncProblem(f"{place}: cannot be written: {error.strerror}") from None

    def _run(self, reference: str) -> SyncResult:
        digest, manifest = fetch_manifest(self._store, reference)
        record = read_record(self._root)
        files, ready = self._contents(digest, manifest, record)
        files = {path: each for path, each in files.items() if self._is_wanted(path)}
        check_repository(files, f"{self._name}: of {', '.join(self._models)}")
        units = by_unit(files)
        changed = {unit for unit, each in units.items() if not self._holds(unit, each)}
        gone = {unit: each for unit, each in by_unit(record.files).items() if unit not in units}
        self._check_owner(changed, record)
        if changed:
            needed = {path for unit in changed for path in units[unit]}
            ready = ready or self._fetch({path: files[path] for path in needed})
            # Written before files move, so that a sync after a crash recognizes the files that it
            # wrote.
            self._write(SyncRecord(source=self._name, files=dict(record.files) | dict(files)))
            staged = self._stage(needed, ready)
            self._make_room(changed, gone)
            # Files beside the revisions come last, because they decide which revisions are served.
            for unit in sorted(changed, key=lambda each: (not _is_revision(each), each)):
                self._place(unit, staged)
                self._verified[unit] = units[unit], _state(_files_of(self._root, unit))
        removed = [unit for unit in sorted(gone) if self._remove(unit, units)]
        kept = {path: each for unit in gone.keys() - removed for path, each in gone[unit].items()}
        done = SyncRecord(
            source=self._name,
            digest=digest,
            files=kept | files,
            kept=sorted(kept),
            models=self._models,
        )
        if changed or removed or done != record:
            self._write(done)
        shutil.rmtree(self._root / _STAGING, ignore_errors=True)
        self._verified = {unit: self._verified[unit] for unit in units}
        return SyncResult(digest=digest, changed=sorted(changed), removed=removed)

    def _contents(
        self, digest: str, manifest: Manifest, record: SyncRecord
    ) -> tuple[dict[str, FileDigest], dict[str, Path]]:
        """Return the digests of a source's files, and the extracted files of an image."""
        archives = [layer for layer in manifest.layers if layer.is_archive]
        if not archives:
            found = artifact_files(manifest, self._name)
            return {path: _file_digest(each) for path, each in found.items()}, {}
        left = set(record.kept)
        known = {path: each for path, each in record.files.items() if path not in left}
        is_known = record.digest == digest and record.models == self._models
        if is_known and all(self._holds(*each) for each in by_unit(known).items()):
            return known, {}
        blobs, staging = self._folder("blobs"), self._folder("image", empty=True)
        layers = [
            fetch_blob(self._store, each, blobs, f"{self._name}: the layer {each.digest}")
            for each in archives
        ]
        ready = extract(layers, staging, self._name)
        return {path: digest_file(each) for path, each in ready.items()}, ready

    def _is_wanted(self, path: str) -> bool:
        return any(fnmatchcase(path.partition("/")[0], pattern) for pattern in self._models)

    def _fetch(self, files: Files) -> dict[str, Path]:
        blobs = self._folder("blobs")
        self._reuse_weights(files, blobs)
        return {
            path: fetch_blob(
                self._store,
                Descriptor(digest=each.digest, size=each.size),
                blobs,
                f"{self._name}: `{path}`",
            )
            for path, each in sorted(files.items())
        }

    def _reuse_weights(self, files: Files, blobs: Path) -> None:
        """Link the weights that a file in place also has, so that they are not fetched."""
        known = {each: path for path, each in read_record(self._root).files.items()}
        for path, each in files.items():
            if path.endswith(WEIGHTS) and each in known:
                with suppress(OSError):  # the file is gone, or the disk has no hard links
                    (blobs / each.digest.partition(":")[2]).hardlink_to(self._root / known[each])

    def _holds(self, unit: str, files: Files) -> bool:
        """Return whether the files of a unit are in place with the right content."""
        found = _files_of(self._root, unit)
        state = _state(found)
        if self._verified.get(unit) == (files, state):
            return True
        sizes = {path: size for path, (_, size, _) in state.items()}
        if sizes != {path: each.size for path, each in files.items()} or any(
            digest_file(each) != files[path] for path, each in found.items()
        ):
            return False
        self._verified[unit] = files, state
        return True

    def _check_owner(self, changed: set[str], record: SyncRecord) -> None:
        """Refuse to replace a revision that no sync has written."""
        known = by_unit(record.files)
        for unit in sorted(changed):
            if unit not in known and _files_of(self._root, unit).keys() - record.files.keys():
                raise SyncProblem(
                    f"{self._root / unit}: differs from the revision of {self._name}, and was not "
                    "written by `models sync`; rename or remove it"
                )

    def _stage(self, paths: Collection[str], ready: Mapping[str, Path]) -> Path:
        """Link the files into a staging folder, each under its own path; return the folder."""
        staged = self._folder("staged", empty=True)
        for path in paths:
            target = staged / path
            target.parent.mkdir(parents=True, exist_ok=True)
            _link(ready[path], target)
        return staged

    def _make_room(self, changed: set[str], gone: Collection[str]) -> None:
        """Create the parent folders of units, and remove files that are in their way."""
        folders = {each.as_posix() for unit in changed for each in PurePosixPath(unit).parents}
        for unit in gone:
            place = self._root / unit
            above = [each.as_posix() for each in PurePosixPath(unit).parents]
            if (unit in folders or not changed.isdisjoint(above)) and place.is_file():
                place.unlink()
        for unit in changed:
            (self._root / unit).parent.mkdir(parents=True, exist_ok=True)

    def _place(self, unit: str, staged: Path) -> None:
        """Rename a revision's folder, or a file beside the revisions, into place."""
        place = self._root / unit
        if place.is_dir() or (place.exists() and (staged / unit).is_dir()):
            place.rename(self._folder("replaced", empty=True) / "folder")
        (staged / unit).rename(place)
        sync_folder(place.parent)

    def _remove(self, unit: str, units: Mapping[str, Files]) -> bool:
        """Remove a unit that the source no longer has, if that is allowed.

        Return whether the unit was removed.
        """
        place, model = self._root / unit, self._root / unit.partition("/")[0]
        if not place.exists():
            return True
        is_there = any(each.partition("/")[0] == model.name for each in units)
        if not self._prune:
            last = read_last_good(model)
            may_be_served = _is_revision(unit) and (not last or place.name in last)
            if may_be_served or not is_there:
                return False
        if place.is_file():
            place.unlink()
        elif _is_revision(unit):
            place.rename(self._folder("replaced", empty=True) / "gone")
        _remove_empty(place.parent, model)
        return True

    def _folder(self, name: str, *, empty: bool = False) -> Path:
        folder = self._root / _STAGING / name
        if empty:
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _write(self, record: SyncRecord) -> None:
        draft = self._root / f"{FILE}.draft"
        with draft.open("wb") as file:
            file.write(msgspec.json.encode(record))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self._root / FILE)
        sync_folder(self._root)


def by_unit(files: Files) -> dict[str, Files]:
    """Group files by unit: a revision, or a file beside revisions.

    The files of a unit are replaced together.
    """
    units: defaultdict[str, dict[str, FileDigest]] = defaultdict(dict)
    for path, each in files.items():
        units[revision_of(path) or path][path] = each
    return dict(units)


@contextmanager
def _only_one(root: Path) -> Iterator[None]:
    with (root / f"{_STAGING}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SyncProblem(f"{root}: another `models sync` is running") from None
        yield


def _files_of(root: Path, unit: str) -> dict[str, Path]:
    """Return the files of a unit by their paths, without hidden files and bytecode."""
    place = root / unit
    found = [place] if place.is_file() else place.rglob("*") if place.is_dir() else ()
    paths = {each.relative_to(root).as_posix(): each for each in found if each.is_file()}
    return {path: each for path, each in paths.items() if not is_hidden(path)}


def _state(files: Mapping[str, Path]) -> _State:
    found = {path: each.stat() for path, each in files.items()}
    return {path: (each.st_ino, each.st_size, each.st_mtime_ns) for path, each in found.items()}


def _remove_empty(folder: Path, model: Path) -> None:
    """Remove a model's empty folders.

    If the model's own folder holds only files that backends wrote, remove this folder, too.
    """
    while folder != model:
        if not folder.is_dir() or any(folder.iterdir()):
            return
        folder.rmdir()
        folder = folder.parent
    if all(_OF_BACKENDS.fullmatch(each.name) for each in model.iterdir()):
        shutil.rmtree(model)


def _is_revision(unit: str) -> bool:
    return unit.partition("/")[2].isdecimal()


def _file_digest(blob: Descriptor) -> FileDigest:
    return FileDigest(digest=blob.digest, size=blob.size)


def _link(source: Path, target: Path) -> None:
    """Hard-link a file, or copy it if it already has another link.

    Two files of the repository must not be links to the same content, because a change of one file
    would change the other file, too. Only weights may be, because nobody edits them.
    """
    if source.stat().st_nlink == 1 or target.name.endswith(WEIGHTS):
        link_or_copy(source, target)
    else:
        shutil.copyfile(source, target)
