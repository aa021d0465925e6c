"""Holds what a bulk job does, as given by its command line, and what must not change in between."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from backends.protocol import ModelInfo, Parameters, Task
from bulk.errors import BulkStopped
from bulk.places import InputFile
from bulk.usage import BulkUsage
from gateway.api.schemas import BODIES, Body

OutputFormat = Literal["parquet", "jsonl"]
# Of requests, but not of a bulk job.
_ELSEWHERE = {
    *("model", "input", "inputs", "documents", "ids", "on_error", "truncate"),
    *("encoding_format", "output_dtype", "top_n", "return_documents"),
}
_INPUTS: Mapping[Task, tuple[str, Any]] = {
    Task.RERANK: ("documents", []),
    Task.DETOKENIZE: ("ids", []),
    Task.INFER: ("inputs", []),
}
_COLUMNS: Mapping[Task, tuple[str, ...]] = {
    Task.CHOOSE: ("prompt", "choices"),
    Task.DETOKENIZE: ("ids",),
}
MANIFEST_VERSION = 1


class BulkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Says what is read, run and written.

    `columns` hold the item, `id_column` names a row in the output, in place of its number, and
    `keep` are copied. A part is a file of the output; `run_rows` are run together: both shape
    which rows share batches, and so the last bits of answers.
    """

    model: str
    task: Task
    parameters: dict[str, Any] = {}
    truncate: bool = True
    columns: tuple[str, ...]
    id_column: str = ""
    keep: tuple[str, ...] = ()
    format: OutputFormat = "parquet"
    part_rows: int = 65_536
    run_rows: int = 2048

    @property
    def read_columns(self) -> tuple[str, ...]:
        """The columns that are read, each once."""
        named = (*self.columns, *([self.id_column] if self.id_column else []), *self.keep)
        return tuple(dict.fromkeys(named))


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a job in its output folder; a run goes on only with an equal one."""

    version: int = MANIFEST_VERSION
    options: BulkOptions
    inputs: tuple[InputFile, ...]
    revision: str
    algorithm: str
    cache: str = ""
    """The scope of the result cache that is shared, if any is."""
    state: Literal["running", "complete"] = "running"
    rows: int = 0
    failed_rows: int = 0
    usage: BulkUsage | None = None
    """Of a complete job."""

    @property
    def digest(self) -> str:
        """A digest of options, inputs and model."""
        own = msgspec.structs.replace(self, state="running", rows=0, failed_rows=0, usage=None)
        return hashlib.blake2b(msgspec.json.encode(own), digest_size=8).hexdigest()


def make_manifest(
    options: BulkOptions,
    inputs: Sequence[InputFile],
    info: ModelInfo,
    profile: str,
    *,
    cache: str = "",
) -> Manifest:
    """Return the manifest of a job that has not run; `profile` says what computes the rows."""
    return Manifest(
        options=options,
        inputs=tuple(inputs),
        revision=info.revision,
        algorithm=f"{info.algorithm} {info.algorithm_version} ({profile})",
        cache=cache,
    )


def differences(old: Manifest, new: Manifest) -> list[str]:
    """Return what is different in `new`, for the person who gave it."""
    found = []
    for name in ("version", "revision", "algorithm", "cache"):
        before, after = getattr(old, name), getattr(new, name)
        if before != after:
            found.append(f"{name} was `{before}` and is `{after}`")
    for field in BulkOptions.__struct_fields__:
        before, after = getattr(old.options, field), getattr(new.options, field)
        if before != after:
            found.append(f"`{field}` was {_shown(before)} and is {_shown(after)}")
    if old.inputs != new.inputs:
        found.append(_input_difference(old.inputs, new.inputs))
    return found


def _shown(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _input_difference(old: Sequence[InputFile], new: Sequence[InputFile]) -> str:
    before = {file.path: file for file in old}
    for file in new:
        if file.path not in before:
            return f"`{file.path}` is a new input"
        if file != before[file.path]:
            return f"`{file.path}` has changed"
    return f"there were {len(old)} inputs and are {len(new)}, or their order differs"


def default_columns(task: Task) -> tuple[str, ...]:
    """Return the columns of an item where none are named."""
    return _COLUMNS.get(task, ("text",))


def read_task(name: str) -> Task:
    """Return a task by its name.

    Raises:
        BulkStopped: there is none.
    """
    if name not in set(Task):
        raise BulkStopped(f"there is no task `{name}`; there are {', '.join(Task)}")
    return Task(name)


def read_parameters(task: Task, model: str, text: str) -> dict[str, Any]:
    """Return parameters from JSON, or a file of it, checked as the body of a request is.

    Raises:
        BulkStopped: they are no parameters of the task.
    """
    if not text:
        text = "{}"
    if not text.lstrip().startswith("{"):
        try:
            text = Path(text).read_text(encoding="utf-8")
        except OSError as error:
            raise BulkStopped(f"--parameters: `{text}` cannot be read: {error.strerror}") from None
    try:
        given = msgspec.json.decode(text, type=dict[str, Any])
        parameters = _body(task, model, given).task_parameters()
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise BulkStopped(f"--parameters are none of `{task}`: {error}") from None
    return cast("dict[str, Any]", msgspec.to_builtins(parameters))


def _body(task: Task, model: str, given: dict[str, Any]) -> Body:
    """Return parameters as the body of a request without items."""
    for name in given:
        if name in _ELSEWHERE:
            raise BulkStopped(f"--parameters: `{name}` is no parameter of a bulk job")
    kind = next(body for body in BODIES if body.task is task)
    field, none = _INPUTS.get(task, ("input", []))
    own = {"model": model} if "model" in kind.__struct_fields__ else {}
    return msgspec.convert({**given, **own, field: none}, kind)


def encoded_parameters(parameters: Parameters) -> bytes:
    """Return parameters as they are in cache keys."""
    return msgspec.msgpack.encode(parameters, order="sorted")
