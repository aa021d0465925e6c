"""Finds and opens files of a bulk job, on this machine or in object storage."""

import fnmatch
import glob
import gzip
import io
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Literal, cast
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import msgspec

from sluicegate.bulk.errors import BulkStopped
from sluicegate.wire.cores import usable_cores
from sluicegate.wire.folders import sync_folder
from sluicegate.wire.installing import install_command

Format = Literal["parquet", "jsonl", "csv"]
_SUFFIXES: dict[str, Format] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
}
TEMPORARY = "_tmp-"


def import_pyarrow(module: str = "pyarrow") -> Any:
    """Import a module of pyarrow, which has no types.

    Raises:
        BulkStopped: pyarrow is not installed.
    """
    import importlib  # noqa: PLC0415 - only needed here

    try:
        importlib.import_module("pyarrow").set_cpu_count(usable_cores())
        return importlib.import_module(module)
    except ModuleNotFoundError:
        raise BulkStopped(f"pyarrow is not installed; run {install_command('bulk')}") from None


class InputFile(msgspec.Struct, frozen=True, kw_only=True):
    """Describes an input file: its path or URI, its format, its size and its time of change.

    If the size or the time differs, the file has changed.
    """

    path: str
    size: int
    modified: float
    format: Format

    def open(self) -> IO[bytes]:
        """Open the file for reading; decompress `.gz`."""
        raw: IO[bytes]
        if is_remote(self.path):
            system, path = _file_system(self.path)
            raw = io.BufferedReader(system.open_input_file(path), 1 << 20)
        else:
            raw = Path(self.path).open("rb")  # noqa: SIM115 - its reader closes it
        if not self.path.partition("?")[0].endswith(".gz"):
            return raw
        unpacked = gzip.GzipFile(fileobj=raw)
        # Makes `GzipFile.close` close the file below, too.
        unpacked.myfileobj = raw  # type: ignore[assignment]  # any file will do
        return cast("IO[bytes]", unpacked)


def find_inputs(patterns: Sequence[str]) -> list[InputFile]:
    """Return the files of paths, globs and URIs in their order; the files of a glob are sorted.

    Raises:
        BulkStopped: a pattern matches no file, or a file's format is unknown.
    """
    found: dict[str, InputFile] = {}
    for pattern in patterns:
        named = _find_remote(pattern) if is_remote(pattern) else _find_local(pattern)
        if not named:
            raise BulkStopped(f"`{pattern}` matches no file")
        found |= {path: _describe(path, size, at) for path, size, at in named}
    return list(found.values())


def is_remote(path: str) -> bool:
    """Return whether a path is a URI of object storage."""
    return "://" in path


def _find_local(pattern: str) -> list[tuple[str, int, float]]:
    names = [pattern] if Path(pattern).is_file() else sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207 - it may be absolute
    files = [Path(name) for name in names if Path(name).is_file()]
    return [(str(file), file.stat().st_size, file.stat().st_mtime) for file in files]


def _find_remote(pattern: str) -> list[tuple[str, int, float]]:
    system, path = _file_system(pattern)
    fs = import_pyarrow("pyarrow.fs")
    base, _, query = pattern.partition("?")
    scheme = base.partition("://")[0]
    suffix = f"?{query}" if query else ""
    has_glob = any(mark in path for mark in "*[")
    wanted: Any = path
    if has_glob:
        fixed = path[: min(path.find(mark) for mark in "*[" if mark in path)]
        wanted = fs.FileSelector(fixed.rpartition("/")[0], recursive=True)
    infos = system.get_file_info(wanted)
    return sorted(
        (f"{scheme}://{info.path}{suffix}", info.size, info.mtime_ns / 1e9 if info.mtime_ns else 0)
        for info in (infos if has_glob else [infos])
        if info.type == fs.FileType.File and (not has_glob or fnmatch.fnmatch(info.path, path))
    )


def _describe(path: str, size: int, modified: float) -> InputFile:
    name = path.partition("?")[0] if is_remote(path) else path
    kind = _SUFFIXES.get(Path(name.removesuffix(".gz")).suffix.lower())
    if kind is None:
        raise BulkStopped(
            f"`{path}` has an unknown format; its name must end in one of {', '.join(_SUFFIXES)}, "
            "with or without `.gz`"
        )
    return InputFile(path=path, size=size, modified=modified, format=kind)


def _file_system(uri: str) -> tuple[Any, str]:
    """Return the file system and path of a URI, from pyarrow or, if it has none, fsspec."""
    if "@" in uri.partition("://")[2].partition("/")[0]:
        # File names are written to the output, so they must not contain secrets.
        raise BulkStopped("a URI must not contain credentials; put them into the environment")
    fs = import_pyarrow("pyarrow.fs")
    try:
        system, path = fs.FileSystem.from_uri(uri)
    except (ValueError, OSError) as error:
        try:
            import fsspec  # type: ignore[import-untyped, unused-ignore] # noqa: PLC0415 - optional

            other, path = fsspec.core.url_to_fs(uri)
        except (ImportError, ValueError):
            raise BulkStopped(f"cannot open `{uri}`: {error}") from None
        return fs.PyFileSystem(fs.FSSpecHandler(other)), path
    return system, path


class OutputFolder:
    """Holds the files of a job's output, local or remote; files appear atomically."""

    def __init__(self, location: str) -> None:
        # pyarrow does not write local files atomically, so treat a `file://` URI as a path.
        if location.startswith("file://"):
            parts = urlsplit(location)
            if parts.netloc not in {"", "localhost"}:
                raise BulkStopped(
                    f"`{location}` names the host `{parts.netloc}`; write `file:///` and an "
                    "absolute path, or only a path"
                )
            location = unquote(parts.path)
        self.location = location.rstrip("/") or "/"
        self._remote: tuple[Any, str] | None = None
        if is_remote(location):
            self._remote = _file_system(self.location)
        elif Path(location).exists() and not Path(location).is_dir():
            raise BulkStopped(f"`{location}` is a file; name a folder for the output")

    def names(self) -> set[str]:
        """Return the names of all files."""
        if self._remote is None:
            folder = Path(self.location)
            return {each.name for each in folder.iterdir()} if folder.is_dir() else set()
        fs = import_pyarrow("pyarrow.fs")
        system, path = self._remote
        selector = fs.FileSelector(path, allow_not_found=True)
        return {info.base_name for info in system.get_file_info(selector)}

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        if self._remote is None:
            return (Path(self.location) / name).read_bytes()
        system, path = self._remote
        with system.open_input_file(f"{path}/{name}") as file:
            content: bytes = file.read()
        return content

    def take(self, file: Path, name: str) -> None:
        """Move a finished local file into the folder.

        A file in a local folder is synced to the disk first.
        """
        if self._remote is not None:
            self._upload(file, name)
            file.unlink()
            return
        with file.open("rb+") as written:
            os.fsync(written.fileno())
        file.rename(Path(self.location) / name)
        sync_folder(Path(self.location))

    def _upload(self, file: Path, name: str) -> None:
        """Upload a file under a temporary name, then rename it."""
        system, path = cast("tuple[Any, str]", self._remote)
        target = f"{path}/{TEMPORARY}{uuid4().hex}"
        try:
            # Object storage has no folders, and credentials may not allow a look at the bucket.
            if system.type_name not in {"s3", "gcs"}:
                system.create_dir(path, recursive=True)
            with file.open("rb") as source, system.open_output_stream(target) as stream:
                # After an error, closing the stream still completes the upload, hence the
                # temporary name.
                while block := source.read(1 << 20):
                    stream.write(block)
            _move(system, target, f"{path}/{name}")
        except BaseException:  # also after a cancellation, remove the temporary file
            with suppress(OSError):
                system.delete_file(target)
            raise

    def remove(self, name: str) -> None:
        """Remove a file if it is there."""
        if self._remote is None:
            (Path(self.location) / name).unlink(missing_ok=True)
            return
        system, path = self._remote
        file = f"{path}/{name}"
        # Each storage raises another error for a missing file, so check first.
        if system.get_file_info(file).is_file:
            system.delete_file(file)


def _move(system: Any, source: str, target: str) -> None:
    try:
        system.move(source, target)
    except NotImplementedError:  # Azure without a hierarchical namespace
        system.copy_file(source, target)
        system.delete_file(source)
