"""Extracts the model repository of a container image: what its layers hold below `models/`."""

import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path

from backends.model_tools.syncing.manifest import SyncProblem, check_path, check_repository

FOLDER = "models/"
_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
# Beside `models/`: a layer says that it is gone, or all of the image is.
_ALL_REMOVED = (_WHITEOUT + FOLDER.removesuffix("/"), _OPAQUE)


def extract(archives: Sequence[Path], folder: Path, where: str) -> dict[str, Path]:
    """Extract layers, the lowest first, into `folder`; return the files by their paths.

    Raises:
        SyncProblem: a layer is no archive that can be read, or holds no models.
        OSError: the disk is full, for example.
    """
    for archive in archives:
        try:
            with tarfile.open(archive) as layer:
                for member in layer:
                    _apply(layer, member, folder, where)
        except SyncProblem:
            raise
        # Of a broken archive nearly anything is raised, errors of the disk without a number too.
        except Exception as error:
            if isinstance(error, OSError) and error.errno:
                raise
            raise SyncProblem(
                f"{where}: a layer is no archive of tar or gzip ({error}); build the image with "
                "layers in that form, or use `sluicegate models push`"
            ) from None
    found = {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    check_repository(found, f"{where}: below `/{FOLDER}`")
    return found


def _apply(layer: tarfile.TarFile, member: tarfile.TarInfo, folder: Path, where: str) -> None:
    """Extract a file, or remove what a layer says is removed."""
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
            "with a copy of the file in its place"
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
            f"{where}: `{path}` has {member.size} bytes, more than the disk of {folder} has free"
        )
    with content, target.open("wb") as copy:
        shutil.copyfileobj(content, copy)


def _below_models(name: str) -> str:
    """Return the path below `models/` of a member's name, empty for one elsewhere."""
    name = _relative(name)
    return name.removeprefix(FOLDER) if name.startswith(FOLDER) else ""


def _relative(name: str) -> str:
    return name.removeprefix("./").removeprefix("/")


def _removed(parent: str, file: str, folder: Path, where: str) -> Path:
    """Return what a layer says is removed: one place, or all of a folder."""
    parts = parent.split("/") if parent else []
    if file != _OPAQUE:
        parts.append(file.removeprefix(_WHITEOUT))
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise SyncProblem(
            f"{where}: a layer removes `{'/'.join(parts)[:100]}`, which is no path of a model "
            "repository"
        )
    return folder.joinpath(*parts)


def _copy_link(member: tarfile.TarInfo, target: Path, folder: Path, where: str) -> None:
    """Copy a file that was extracted, as a hard link of a layer says: not all disks have these."""
    source = _below_models(member.linkname)
    found = folder / source
    if source:
        check_path(source, where)
    if not source or not found.is_file():
        raise SyncProblem(
            f"{where}: `{member.name[:100]}` is a link to `{member.linkname[:100]}`, which is no "
            f"file below `/{FOLDER}`; build the image with a copy in its place"
        )
    shutil.copyfile(found, target)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
