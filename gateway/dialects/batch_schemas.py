"""Defines the bodies of requests and responses for files and batches, as in OpenAI's API."""

from typing import Annotated, Literal

import msgspec

from sluicegate.gateway.ledger.batch_types import BatchFailure, BatchState, RequestBatch, StoredFile

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class FileView(msgspec.Struct, frozen=True, kw_only=True):
    """A file."""

    id: str
    """The id to use in other requests."""
    object: Literal["file"] = "file"
    """A constant. Some clients check it."""
    bytes: int
    """The size in bytes."""
    created_at: int
    """When the file was created. All times of files and batches are in seconds since 1970 (UTC)."""
    expires_at: int
    """When the file is deleted."""
    filename: str
    """The file's name in the upload."""
    purpose: str
    """`batch` for an uploaded file, and `batch_output` for results of a batch."""
    status: Literal["processed"] = "processed"
    """A constant. Some clients check it."""


class FileList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of files."""

    object: Literal["list"] = "list"
    """A constant. Some clients check it."""
    data: list[FileView]
    """The files of the page."""
    first_id: str | None
    """The id of the first element."""
    last_id: str | None
    """The id of the last element. To get the next page, send it as `after`."""
    has_more: bool
    """Whether there is a next page."""


class DeletedFile(msgspec.Struct, frozen=True, kw_only=True):
    """The confirmation that a file was deleted."""

    id: str
    """The id of the deleted file."""
    object: Literal["file"] = "file"
    """A constant. Some clients check it."""
    deleted: bool = True
    """Always `true`."""


class ExpiryRule(msgspec.Struct, frozen=True, kw_only=True):
    """Says when a file is deleted."""

    anchor: Literal["created_at"]
    """The moment from which `seconds` are counted: the file's creation."""
    seconds: int
    """After how many seconds the file is deleted. At least 3600."""


class NewBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch to create."""

    input_file_id: _Name
    """The id of a JSON Lines file. Each line has `custom_id`, `method` (`POST`), `url` and
    `body`."""
    endpoint: _Name
    """The inference route to which all lines are requests."""
    completion_window: str
    """The time within which the batch is to run. Must be `24h`."""
    metadata: dict[str, str] | None = None
    """Up to 16 entries of the caller. They are stored and returned."""
    output_expires_after: ExpiryRule | None = None
    """When the result files are deleted."""


class RequestCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a batch."""

    total: int
    """The number of lines in the input file. It is 0 until the file has been read."""
    completed: int
    """The number of lines that succeeded. Their responses are in the output file."""
    failed: int
    """The number of lines that failed. They are in the errors file."""


class BatchErrorList(msgspec.Struct, frozen=True, kw_only=True):
    """Why a batch failed."""

    object: Literal["list"] = "list"
    """A constant. Some clients check it."""
    data: list[BatchFailure]
    """The reasons."""


class BatchView(msgspec.Struct, frozen=True, kw_only=True):
    """A batch and its progress."""

    id: str
    """The id to use in other requests."""
    object: Literal["batch"] = "batch"
    """A constant. Some clients check it."""
    endpoint: str
    """The inference route to which all lines are requests."""
    errors: BatchErrorList | None
    """Why the batch as a whole failed. Single lines that failed are in the errors file."""
    input_file_id: str
    """The id of the input file."""
    completion_window: Literal["24h"] = "24h"
    """The time within which the batch is to run."""
    status: BatchState
    """What the batch is doing, or how it ended."""
    output_file_id: str | None
    """The id of the output file. It has the responses in the order of the input."""
    error_file_id: str | None
    """The id of the errors file. It has the lines that failed."""
    created_at: int
    """When the batch was created."""
    in_progress_at: int | None
    """When processing began."""
    expires_at: int
    """When the batch expires. Lines that have not run by then fail."""
    finalizing_at: int | None
    """When the last line had run."""
    completed_at: int | None
    """When the result files were ready."""
    failed_at: int | None
    """When the batch as a whole failed."""
    expired_at: int | None
    """When the batch expired."""
    cancelling_at: int | None
    """When the cancellation was requested."""
    cancelled_at: int | None
    """When the cancellation was complete."""
    request_counts: RequestCounts
    """The progress of the batch."""
    metadata: dict[str, str] | None
    """The entries that the caller sent."""


class BatchList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of batches, newest first."""

    object: Literal["list"] = "list"
    """A constant. Some clients check it."""
    data: list[BatchView]
    """The batches of the page."""
    first_id: str | None
    """The id of the first element."""
    last_id: str | None
    """The id of the last element. To get the next page, send it as `after`."""
    has_more: bool
    """Whether there is a next page."""


def file_view(file: StoredFile) -> FileView:
    """Return `file` as the API shows it."""
    return FileView(
        id=file.id,
        bytes=file.size,
        created_at=file.created,
        expires_at=file.expires,
        filename=file.filename,
        purpose=file.purpose,
    )


def batch_view(batch: RequestBatch) -> BatchView:
    """Return `batch` as the API shows it."""
    return BatchView(
        id=batch.id,
        endpoint=batch.endpoint,
        errors=BatchErrorList(data=list(batch.failures)) if batch.failures else None,
        input_file_id=batch.input_file,
        status=batch.status,
        output_file_id=batch.output_file,
        error_file_id=batch.error_file,
        created_at=batch.created,
        expires_at=batch.expires,
        in_progress_at=batch.moments.get("in_progress"),
        finalizing_at=batch.moments.get("finalizing"),
        completed_at=batch.moments.get("completed"),
        failed_at=batch.moments.get("failed"),
        expired_at=batch.moments.get("expired"),
        cancelling_at=batch.moments.get("cancelling"),
        cancelled_at=batch.moments.get("cancelled"),
        request_counts=RequestCounts(
            total=batch.total or 0, completed=batch.completed, failed=batch.failed
        ),
        metadata=batch.metadata,
    )
