"""Defines the options of a bulk job, and the manifest that must not change during the job."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from sluicegate.bulk.errors import BulkStopped
from sluicegate.bulk.files import InputFile
from sluicegate.bulk.usage import BulkUsage
from sluicegate.gateway.api.schemas import BODIES, Body
from sluicegate.wire.protocol import PARAMETERS, ModelInfo, Task, item_fields

OutputFormat = Literal["parquet", "jsonl"]
# What to do instead, by fields of requests that are not parameters of a bulk job.
_ELSEWHERE = {
    "model": "use --model",
    "truncate": "use --no-truncate",
    "on_error": "use --max-errors",
    **dict.fromkeys(("input", "inputs", "documents", "ids"), "use --column"),
    **dict.fromkeys(("top_n", "return_documents"), "leave it out: each row gets its score"),
}
_DENSE_ONLY = (
    "leave it out: the job writes dense vectors in float32. `prompt_name` marks queries; "
    "`POST /v1/embed` and batches have other outputs"
)
_INPUTS: Mapping[Task, tuple[str, Any]] = {
    Task.RERANK: ("documents", []),
    Task.DETOKENIZE: ("ids", []),
    Task.INFER: ("inputs", []),
}
MANIFEST_VERSION = 1


class BulkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the options of a bulk job that affect its output.

    `columns` are the columns that contain the item. `id_column` identifies rows in the output;
    without it, their number does. The columns in `keep` are copied to the output. An output file
    (part) has `part_rows` rows. The model runs `run_rows` rows together. Both numbers affect
    batches, and so the last bits of results.
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
        """The columns to read, without repetitions."""
        named = (*self.columns, *([self.id_column] if self.id_column else []), *self.keep)
        return tuple(dict.fromkeys(named))


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a job in its output folder. Only a run with an equal manifest may continue it."""

    version: int = MANIFEST_VERSION
    options: BulkOptions
    inputs: tuple[InputFile, ...]
    revision: str
    algorithm: str
    cache: str = ""
    """The scope in the shared result cache, or ""."""
    state: Literal["running", "complete"] = "running"
    rows: int = 0
    failed_rows: int = 0
    usage: BulkUsage | None = None
    """The usage of a complete job."""

    @property
    def digest(self) -> str:
        """A digest of the options, inputs and model."""
        own = msgspec.structs.replace(self, state="running", rows=0, failed_rows=0, usage=None)
        return hashlib.blake2b(msgspec.json.encode(own), digest_size=8).hexdigest()


def make_manifest(
    options: BulkOptions,
    inputs: Sequence[InputFile],
    info: ModelInfo,
    execution: str,
    *,
    cache: str = "",
) -> Manifest:
    """Return the manifest of a new job; `execution` describes how rows are computed."""
    return Manifest(
        options=options,
        inputs=tuple(inputs),
        revision=info.revision,
        algorithm=f"{info.algorithm} {info.algorithm_version} ({execution})",
        cache=cache,
    )


def differences(old: Manifest, new: Manifest) -> list[str]:
    """Describe the differences between two manifests, for an error message."""
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
    """Return the default columns of an item."""
    if task is Task.DETOKENIZE:
        return ("ids",)
    return item_fields(task) or ("text",)


def read_task(name: str) -> Task:
    """Return a task by its name.

    Raises:
        BulkStopped: the task is unknown.
    """
    if name not in set(Task):
        raise BulkStopped(f"the task `{name}` is unknown; use one of {', '.join(Task)}")
    return Task(name)


def read_parameters(task: Task, model: str, text: str) -> dict[str, Any]:
    """Return parameters from JSON or a JSON file, checked like the body of a request.

    Raises:
        BulkStopped: the parameters are invalid.
    """
    if not text:
        text = "{}"
    if not text.lstrip().startswith("{"):
        try:
            text = Path(text).read_text(encoding="utf-8")
        except OSError as error:
            raise BulkStopped(f"--parameters: cannot read `{text}`: {error.strerror}") from None
    try:
        given = msgspec.json.decode(text, type=dict[str, Any])
        parameters = _body(task, model, given).task_parameters()
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise BulkStopped(f"--parameters are invalid for the task `{task}`: {error}") from None
    return cast("dict[str, Any]", msgspec.to_builtins(parameters))


def _body(task: Task, model: str, given: dict[str, Any]) -> Body:
    """Return a request body with these parameters and without items."""
    kind = next(body for body in BODIES if body.task is task)
    parameters = PARAMETERS[task].__struct_fields__
    for name in given:
        if name in kind.__struct_fields__ and name not in parameters:
            instead = _ELSEWHERE.get(name, _DENSE_ONLY)
            raise BulkStopped(f"--parameters: `{name}` is not a parameter of bulk jobs; {instead}")
    field, none = _INPUTS.get(task, ("input", []))
    own = {"model": model} if "model" in kind.__struct_fields__ else {}
    return msgspec.convert({**given, **own, field: none}, kind)
