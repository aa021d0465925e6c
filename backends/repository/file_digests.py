"""Computes the digest of a model's files, and remembers the digests of unchanged files."""

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from sluicegate.backends.errors import ModelProblem
from sluicegate.backends.repository.names import is_hidden
from sluicegate.backends.repository.publishing import WEIGHTS, replace_file

_RECORD = ".digests.json"
# A file that changed so recently (in nanoseconds) may change again at the same time of its clock.
_RECENT = 2_000_000_000
_Stamp = tuple[int, int, int, int]


class _Known(msgspec.Struct, frozen=True, array_like=True):
    """Holds the digest of a file. A change of the file changes its `stamp`."""

    stamp: _Stamp
    digest: bytes


def digest_files(folder: Path, *, without: Callable[[str], bool] = lambda _: False) -> str:
    """Return the digest of the names and contents of all files in a folder, except `without`.

    A file is read only if its size, inode or times have changed since the last call, also by
    another process. Copies of the folder have other inodes, so their files are read again. Some
    network and object stores keep neither inodes nor times of changes. There, a change that keeps
    size and modification time is not seen. Nor is it seen in weights with several names (hard
    links), because every new name changes the time of the last change.

    Raises:
        ModelProblem: a file cannot be read.
    """
    digest, known, found = hashlib.blake2b(), _read(folder), {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if not path.is_file() or is_hidden(name) or without(name.partition("/")[0]):
            continue
        began = time.time_ns()
        try:
            each = _digest(path, known.get(name))
        except OSError as error:
            raise ModelProblem(f"{path}: cannot be read: {error.strerror}") from None
        digest.update(len(name.encode()).to_bytes(8, "little") + name.encode() + each.digest)
        if began - max(each.stamp[2:]) > _RECENT:
            found[name] = each
    if found != known:
        replace_file(folder / _RECORD, msgspec.json.encode(found))
    return digest.hexdigest()


def _digest(path: Path, known: _Known | None) -> _Known:
    with path.open("rb") as file:
        stat = os.fstat(file.fileno())
        is_shared = stat.st_nlink > 1 and path.name.endswith(WEIGHTS)
        changed = 0 if is_shared else stat.st_ctime_ns
        stamp = (stat.st_size, stat.st_ino, stat.st_mtime_ns, changed)
        if known is not None and known.stamp == stamp:
            return known
        return _Known(stamp, hashlib.file_digest(file, "blake2b").digest())


def _read(folder: Path) -> dict[str, _Known]:
    try:
        return msgspec.json.decode((folder / _RECORD).read_bytes(), type=dict[str, _Known])
    except (OSError, msgspec.DecodeError):
        return {}
