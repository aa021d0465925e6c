"""Extracts the model repository of a container image: the files below `models/` in its layers."""

import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path

from sluicegate.backends.model_tools.syncing.manifest import (
    SyncProblem,
    check_path,
    check_repository,
)

FOLDER = "models/"
_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
# A whiteout of `models`, or of all files in the root folder, removes the whole repository.
_ALL_REMOVED = (_WHITEOUT + FOLDER.removesuffix("/"), _OPAQUE)


def extract(archives: Sequence[Path], folder: Path, where: str) -> dict[str, Path]:
    """Extract layers into `folder`, lowest layer first; return the files by their paths.

    Raises:
        SyncProblem: a layer cannot be read, or there are no models.
        OSError: the disk is full, for example.
    """
    for archive in archives:
        try:
            with tarfile.open(archive) as layer:
                for member in layer:
                    _apply(layer, member, folder, where)
        except SyncProblem:
            raise
        # A broken archive may raise nearly any error, even an `OSError` without a number.
        except Exception as error:
            if isinstance(error, OSError) and error.errno:
                raise
            raise SyncProblem(
                f"{where}: a layer is not a tar or gzip archive ({error}); build the image with "
                "such layers, or use `sluicegate models push`"
            ) from None
    found = {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    check_repository(found, f"{where}: below `/{FOLDER}`")
    return found


def _apply(layer: tarfile.TarFile, member: tarfile.TarInfo, folder: Path, where: str) -> None:
    """Extract a file of a layer, or remove the files that a whiteout names."""
    if _relative(member.name) in _ALL_REMOVED:
        _remove(folder)
    path = _below_models(member.name)
    parent, _, file = path.rpartition("/")
    if file.startswith(_WHITEOUT):
        _remove(_removed(parent, file, folder, where))
        return
    if not path or member.isdir() or any(part.startswith(".") for part in path.split("/")):
        return
    if not (member.isfile() or member.islnk()):
        raise SyncProblem(
            f"{where}: `{member.name[:100]}` is a symbolic link or a device; build the image "
            "with a copy of the file instead"
        )
    if "/" not in path:
        return
    check_path(path, where)
    target = folder / path
    _remove(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    if member.islnk():
        _copy_link(member, target, folder, where)
        return
    content = layer.extractfile(member)
    if content is None or member.size > shutil.disk_usage(folder).free:
        raise SyncProblem(
            f"{where}: `{path}` has {member.size} bytes, but the disk of {folder} has less space; "
            "free some"
        )
    with content, target.open("wb") as copy:
        shutil.copyfileobj(content, copy)


def _below_models(name: str) -> str:
    """Return a member's path below `models/`; empty for a member outside of `models/`."""
    name = _relative(name)
    return name.removeprefix(FOLDER) if name.startswith(FOLDER) else ""


def _relative(name: str) -> str:
    return name.removeprefix("./").removeprefix("/")


def _removed(parent: str, file: str, folder: Path, where: str) -> Path:
    """Return the path that a whiteout removes: a file, a folder, or the content of a folder."""
    parts = parent.split("/") if parent else []
    if file != _OPAQUE:
        parts.append(file.removeprefix(_WHITEOUT))
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise SyncProblem(
            f"{where}: a layer removes `{'/'.join(parts)[:100]}`, which is not a path in a model "
            "repository"
        )
    return folder.joinpath(*parts)


def _copy_link(member: tarfile.TarInfo, target: Path, folder: Path, where: str) -> None:
    """Copy the target of a hard link, because not all disks support hard links."""
    source = _below_models(member.linkname)
    found = folder / source
    if source:
        check_path(source, where)
    if not source or not found.is_file():
        raise SyncProblem(
            f"{where}: `{member.name[:100]}` links to `{member.linkname[:100]}`, which is not a "
            f"file below `/{FOLDER}`; build the image with a copy instead"
        )
    shutil.copyfile(found, target)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
