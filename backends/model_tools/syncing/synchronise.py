"""Makes a repository hold what a source holds: verified first, then put in place by renames."""

import fcntl
import os
import re
import shutil
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

import msgspec

from backends.model_tools.syncing.archives import extract
from backends.model_tools.syncing.fetching import digest_file, fetch_blob, fetch_manifest
from backends.model_tools.syncing.manifest import (
    Descriptor,
    Manifest,
    SyncProblem,
    artifact_files,
    check_repository,
    revision_of,
)
from backends.model_tools.syncing.stores import ArtifactStore
from backends.repository.last_good import read_last_good
from backends.repository.sync_record import FILE, FileDigest, SyncRecord, read_record

_STAGING = ".synchronising"
# What backends write into a model's folder.
_MEASURED = re.compile(r"\.(last-served|admitted|tuning|forms)\.json(\.\d+)?|\.prepacked")
Files = Mapping[str, FileDigest]
_State = Mapping[str, tuple[int, int, int]]
"""Of each file inode, size and time of its last change."""


class SyncResult(msgspec.Struct, frozen=True, kw_only=True):
    """Says which manifest is in place, and what that changed: revisions, and files beside them."""

    digest: str
    changed: list[str] = []
    removed: list[str] = []


class Synchroniser:
    """Synchronises a repository, as often as it is asked to.

    What is in place is verified by its digests at the first time, and where a file has changed
    since; what differs is fetched anew.
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
        """`name` is the source's, for the record and messages; `models` are patterns of names.

        Without `prune` a revision that left the source stays until a backend has served another
        one in its place; a model that left it stays.
        """
        self._store = store
        self._root = root
        self._name = name
        self._prune = prune
        self._models = list(models)
        self._verified: dict[str, tuple[Files, _State]] = {}

    def run(self, reference: str) -> SyncResult:
        """Fetch and verify all that is missing, then put it in place.

        Raises:
            SyncProblem: the source, or a file in it, is missing, truncated or altered, and nothing
                in the repository has changed; or the repository cannot be written.
        """
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            with _only_one(self._root):
                try:
                    return self._run(reference)
                finally:
                    # Blobs stay after a failure: the next run goes on with them.
                    for name in ("image", "staged"):
                        shutil.rmtree(self._root / _STAGING / name, ignore_errors=True)
        except OSError as error:
            place = error.filename or self._root
            raise SyncProblem(f"{place}: it cannot be written: {error.strerror}") from None

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
            # First, so that a sync after a killed one knows what is its own.
            self._write(SyncRecord(source=self._name, files=dict(record.files) | dict(files)))
            staged = self._stage(needed, ready)
            self._make_room(changed, gone)
            # Files beside the revisions last: they say which of these are served.
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
        """Return the files of a source; those of an image as they were extracted, too."""
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
        return {
            path: fetch_blob(
                self._store,
                Descriptor(digest=each.digest, size=each.size),
                blobs,
                f"{self._name}: `{path}`",
            )
            for path, each in sorted(files.items())
        }

    def _holds(self, unit: str, files: Files) -> bool:
        """Return whether a unit is in place as it should be, to the byte."""
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
        """Raise where a revision that somebody else made is in the way."""
        known = by_unit(record.files)
        for unit in sorted(changed):
            if unit not in known and _files_of(self._root, unit).keys() - record.files.keys():
                raise SyncProblem(
                    f"{self._root / unit}: it differs from that of {self._name}, and no "
                    "`models sync` brought it; rename or remove it"
                )

    def _stage(self, paths: Collection[str], ready: Mapping[str, Path]) -> Path:
        """Lay files out as they are to be."""
        staged = self._folder("staged", empty=True)
        for path in paths:
            target = staged / path
            target.parent.mkdir(parents=True, exist_ok=True)
            _link(ready[path], target)
        return staged

    def _make_room(self, changed: set[str], gone: Collection[str]) -> None:
        """Make the folders that units go to; files that left are removed where folders change."""
        folders = {each.as_posix() for unit in changed for each in PurePosixPath(unit).parents}
        for unit in gone:
            place = self._root / unit
            above = [each.as_posix() for each in PurePosixPath(unit).parents]
            if (unit in folders or not changed.isdisjoint(above)) and place.is_file():
                place.unlink()
        for unit in changed:
            (self._root / unit).parent.mkdir(parents=True, exist_ok=True)

    def _place(self, unit: str, staged: Path) -> None:
        """Put a revision's folder, or a file beside revisions, in place by a rename."""
        place = self._root / unit
        if place.is_dir() or (place.exists() and (staged / unit).is_dir()):
            place.rename(self._folder("replaced", empty=True) / "folder")
        (staged / unit).rename(place)
        _sync_folder(place.parent)

    def _remove(self, unit: str, units: Mapping[str, Files]) -> bool:
        """Remove what left the source, if it may go; return whether it is gone."""
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
        _sync_folder(self._root)


def by_unit(files: Files) -> dict[str, Files]:
    """Return files by what is put in place at once: a revision, or one file beside revisions."""
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
            raise SyncProblem(f"{root}: another `models sync` is at work there") from None
        yield


def _files_of(root: Path, unit: str) -> dict[str, Path]:
    """Return the files of a unit by their paths, without those that are no part of a model."""
    place = root / unit
    found = [place] if place.is_file() else place.rglob("*") if place.is_dir() else ()
    paths = {each.relative_to(root).as_posix(): each for each in found if each.is_file()}
    return {path: each for path, each in paths.items() if not is_hidden(path)}


def _state(files: Mapping[str, Path]) -> _State:
    found = {path: each.stat() for path, each in files.items()}
    return {path: (each.st_ino, each.st_size, each.st_mtime_ns) for path, each in found.items()}


def is_hidden(path: str) -> bool:
    """Return whether a file is no part of a model: hidden, or Python's byte code."""
    return any(part.startswith(".") or part == "__pycache__" for part in path.split("/"))


def _remove_empty(folder: Path, model: Path) -> None:
    """Remove folders of a model that hold nothing, up to its own with what backends wrote there."""
    while folder != model:
        if not folder.is_dir() or any(folder.iterdir()):
            return
        folder.rmdir()
        folder = folder.parent
    if all(_MEASURED.fullmatch(each.name) for each in model.iterdir()):
        shutil.rmtree(model)


def _is_revision(unit: str) -> bool:
    return unit.partition("/")[2].isdecimal()


def _file_digest(blob: Descriptor) -> FileDigest:
    return FileDigest(digest=blob.digest, size=blob.size)


def _link(source: Path, target: Path) -> None:
    """Give a file a second name; copy it where it has one, so that no two in place are the same.

    Whoever altered one of these would alter the other.
    """
    try:
        if source.stat().st_nlink == 1:
            target.hardlink_to(source)
            return
    except OSError:
        pass
    shutil.copyfile(source, target)


def _sync_folder(folder: Path) -> None:
    """Have renames in a folder outlive the machine's end."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
