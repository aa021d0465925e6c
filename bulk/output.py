"""Writes the parts (files) of a job's output atomically, and the failed rows."""

import fcntl
import hashlib
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self
from uuid import uuid4

import msgspec

from sluicegate.bulk.errors import BulkStopped
from sluicegate.bulk.files import TEMPORARY, InputFile, OutputFolder, is_remote
from sluicegate.bulk.options import BulkOptions, Manifest, differences
from sluicegate.bulk.reading import BadRow, Row, count_rows
from sluicegate.bulk.results import StoredResult
from sluicegate.bulk.usage import BulkUsage
from sluicegate.bulk.writing import PartWriter, open_writer, write_json

# Programs that read a folder of data ignore names that begin with `_`.
MANIFEST, ERRORS, WORK = "_manifest.json", "_errors.jsonl", "_work"
# The file with a random id of the job, so that its usage is billed once.
JOB = "_job"
# The prefix of work folders. The output folder may contain one, because `--work` may name it.
_WORK_PREFIX = "sluicegate-bulk-"
_WORK_NAMES = (WORK, TEMPORARY, _WORK_PREFIX)
_PART = re.compile(r"part-(\d{5,})-(\d{5,})\.(?:parquet|jsonl)")
_ERRORS = re.compile(r"_errors-(\d{5,})-(\d{5,})\.jsonl")
_USAGE = re.compile(r"_usage-(\d{5,})-(\d{5,})\.json")


def open_manifest(folder: OutputFolder, manifest: Manifest) -> Manifest:
    """Return the manifest of the job in a folder, or `manifest` if the folder is empty.

    Raises:
        BulkStopped: the folder has another job or other files.
    """
    names = {name for name in folder.names() if not name.startswith(_WORK_NAMES)}
    if MANIFEST not in names:
        if names:
            raise BulkStopped(
                f"`{folder.location}` is not empty and has no bulk job; name another folder"
            )
        return manifest
    try:
        found = msgspec.json.decode(folder.read(MANIFEST), type=Manifest)
    except msgspec.DecodeError as error:
        detail = f"`{folder.location}/{MANIFEST}` is not a valid manifest: {error}"
        raise BulkStopped(detail) from None
    changed = differences(found, manifest)
    if changed:
        raise BulkStopped(
            f"`{folder.location}` has another job: {'; '.join(changed)}. Use the same inputs and "
            "options as before, or name another folder"
        )
    return found


def errors_name(part: str) -> str:
    """Return the name of the file with a part's failed rows."""
    return f"_errors-{part}.jsonl"


def tidy(folder: OutputFolder) -> None:
    """Remove the intermediate files of a complete job."""
    for name in folder.names():
        if _ERRORS.fullmatch(name) or _USAGE.fullmatch(name) or name.startswith(TEMPORARY):
            folder.remove(name)


class WorkFolder:
    """Holds the intermediate files of a job on this machine, and locks them for one process.

    `path` has the stored results. Parts are written in `stage` and then moved to the output. For a
    local output, `stage` is in the output folder. Both folders are removed at the end.
    """

    def __init__(self, path: Path, stage: Path) -> None:
        self.path, self.stage = path, stage
        path.mkdir(parents=True, exist_ok=True)
        stage.mkdir(parents=True, exist_ok=True)
        self._lock = (stage / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise BulkStopped(f"another process runs the job in `{stage}`; wait for it") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    def remove(self) -> None:
        """Remove both folders, because the job is complete."""
        # On NFS, a folder with an open file cannot be removed.
        self._lock.close()
        for path in (self.path, self.stage):
            shutil.rmtree(path, ignore_errors=True)


def work_folder(given: Path | None, folder: OutputFolder, manifest: Manifest) -> WorkFolder:
    """Return the work folder of a job, in the folder `given`.

    If `given` is `None`, the work folder is in the output folder. But if the output is remote, the
    work folder is in the current directory.
    """
    own = f"{WORK}-{folder.location}-{manifest.digest}".encode()
    name = f"{_WORK_PREFIX}{hashlib.blake2b(own, digest_size=8).hexdigest()}"
    kept = (given or Path()) / name
    if is_remote(folder.location):
        return WorkFolder(kept, kept)
    stage = Path(folder.location) / WORK
    return WorkFolder(stage if given is None else kept, stage)


class OutputParts:
    """Writes results to parts, and failed rows to a file beside each part."""

    def __init__(
        self,
        folder: OutputFolder,
        work: Path,
        options: BulkOptions,
        files: Sequence[InputFile],
        types: Mapping[str, Any],
        *,
        names: Collection[str] | None = None,
    ) -> None:
        """Read the names of finished parts in the folder; `names` replaces this."""
        self._folder = folder
        self._work = work
        self._options = options
        self._files = files
        self._types = types
        self._copied = [*([options.id_column] if options.id_column else []), *options.keep]
        names = folder.names() if names is None else names
        self._names = names
        self._done = {match.groups() for name in names if (match := _PART.fullmatch(name))}
        self._error_files = {
            name
            for name in names
            if (match := _ERRORS.fullmatch(name)) and match.groups() in self._done
        }
        self.failed = sum(folder.read(name).count(b"\n") for name in self._error_files)
        self._writer: PartWriter | None = None
        self._errors: IO[bytes] | None = None

    @property
    def has_parts(self) -> bool:
        """Whether earlier runs have finished any part."""
        return bool(self._done)

    def is_done(self, file: int, part: int) -> bool:
        """Return whether a part is finished."""
        return (f"{file:05}", f"{part:05}") in self._done

    def parts_of(self, file: int) -> int:
        """Return how many parts of an input file are finished before the first unfinished part."""
        count = 0
        while self.is_done(file, count):
            count += 1
        return count

    def rows_before(self, files: Sequence[InputFile]) -> int:
        """Return how many rows earlier runs have written."""
        done = 0
        for number, file in enumerate(files):
            parts = self.parts_of(number)
            if parts:
                done += min(parts * self._options.part_rows, count_rows(file))
        return done

    def write(
        self, file: int, first: int, rows: Sequence[Row], results: Sequence[StoredResult]
    ) -> None:
        """Write rows of the input `file`, beginning with its row number `first`."""
        writer = self._open_writer()
        heads, answered = [], []
        for number, (row, result) in enumerate(zip(rows, results, strict=True), first):
            if result.code:
                self._write_error(file, number, row, result)
                continue
            heads.append(self._head(file, number, row))
            answered.append(result)
        writer.write(heads, answered)

    def end_part(self, file: int, part: int, usage: BulkUsage | None = None) -> None:
        """Finish a part. The files of its usage and failed rows are written before it."""
        self._open_writer().close()
        name = f"{file:05}-{part:05}"
        if usage is not None:
            self.put(f"_usage-{name}.json", msgspec.json.encode(usage))
        if self._errors is not None:
            self._errors.close()
            self._folder.take(self._work / "errors", errors_name(name))
            self._error_files.add(errors_name(name))
        elif errors_name(name) in self._names:
            # An earlier attempt was killed after it had written this file. Its rows now succeed.
            self._folder.remove(errors_name(name))
        self._folder.take(self._work / "part", f"part-{name}.{self._options.format}")
        self._writer = self._errors = None

    def close(self) -> None:
        """Close open files; an unfinished part is lost."""
        for file in (self._writer, self._errors):
            if file is not None:
                file.close()

    def begin(self, manifest: Manifest) -> None:
        """Write the manifest of the job. If the job has no id yet, write a random id."""
        self.put(MANIFEST, msgspec.json.encode(manifest))
        if JOB not in self._names:
            self.put(JOB, uuid4().hex.encode())

    def put(self, name: str, content: bytes) -> None:
        """Write a file of the output atomically."""
        file = self._work / "file"
        file.write_bytes(content)
        self._folder.take(file, name)

    def usage_of_parts(self) -> BulkUsage | None:
        """Return the usage of all finished parts, for a job that runs part by part.

        Returns `None` if an earlier version, which did not record usage, wrote a part.
        """
        names = [f"_usage-{file}-{part}.json" for file, part in self._done]
        if not set(names) <= set(self._names):
            return None
        total = BulkUsage()
        for name in names:
            total += msgspec.json.decode(self._folder.read(name), type=BulkUsage)
        return total

    def collect_errors(self) -> None:
        """Write the failed rows of all parts, also of an unfinished part, to one file."""
        target = self._work / "all-errors"
        with target.open("wb") as file:
            for name in sorted(self._error_files):
                file.write(self._folder.read(name))
            if self._errors is not None:
                self._errors.flush()
                file.write((self._work / "errors").read_bytes())
        if target.stat().st_size:
            self._folder.take(target, ERRORS)

    def complete(self, manifest: Manifest) -> None:
        """Write the failed rows, mark the job as complete, and remove intermediate files."""
        self.collect_errors()
        self.put(MANIFEST, msgspec.json.encode(manifest))
        tidy(self._folder)

    def _open_writer(self) -> PartWriter:
        if self._writer is None:
            self._writer = open_writer(self._options, self._work / "part", self._types)
        return self._writer

    def _head(self, file: int, number: int, row: Row) -> dict[str, Any]:
        """Return the columns that identify a row, and its copied columns."""
        head: dict[str, Any] = {}
        if not self._options.id_column:
            if len(self._files) > 1:
                head["file"] = self._files[file].path
            head["row"] = number
        if isinstance(row, dict):
            head |= {name: row.get(name) for name in self._copied}
        return head

    def _write_error(self, file: int, number: int, row: Row, result: StoredResult) -> None:
        if self._errors is None:
            self._errors = (self._work / "errors").open("wb")
        self.failed += 1
        error: dict[str, Any] = {"file": self._files[file].path, "row": number}
        if self._options.id_column and not isinstance(row, BadRow):
            error["id"] = row.get(self._options.id_column)
        error |= {"code": result.code, "detail": result.detail}
        self._errors.write(write_json(error) + b"\n")
