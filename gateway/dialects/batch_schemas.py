"""Defines the bodies of the routes of files and batches, as OpenAI's API has them."""

from typing import Annotated, Literal

import msgspec

from gateway.ledger.batch_types import BatchFailure, BatchState, RequestBatch, StoredFile

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class FileView(msgspec.Struct, frozen=True, kw_only=True):
    """A file."""

    id: str
    """What other requests name it by."""
    object: Literal["file"] = "file"
    """For clients that look for it."""
    bytes: int
    """Its size."""
    created_at: int
    """Seconds since 1970, as all moments of files and batches."""
    expires_at: int
    """When it is removed."""
    filename: str
    """The name that it was sent with."""
    purpose: str
    """`batch`, or `batch_output` for the results of one."""
    status: Literal["processed"] = "processed"
    """For clients that look for it."""


class FileList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of files."""

    object: Literal["list"] = "list"
    """For clients that look for it."""
    data: list[FileView]
    """The files of the page."""
    first_id: str | None
    """The id of the first one."""
    last_id: str | None
    """What to send as `after` for the next page."""
    has_more: bool
    """Whether there is a next page."""


class DeletedFile(msgspec.Struct, frozen=True, kw_only=True):
    """The confirmation that a file was deleted."""

    id: str
    """What it was named by."""
    object: Literal["file"] = "file"
    """For clients that look for it."""
    deleted: bool = True
    """Is always true."""


class ExpiryRule(msgspec.Struct, frozen=True, kw_only=True):
    """When a file is removed."""

    anchor: Literal["created_at"]
    """The moment from which the time runs."""
    seconds: int
    """From 3600 on."""


class NewBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch to create."""

    input_file_id: _Name
    """A file whose lines have `custom_id`, `method` (`POST`), `url` and `body`."""
    endpoint: _Name
    """The inference route that all its lines are for."""
    completion_window: str
    """`24h`."""
    metadata: dict[str, str] | None = None
    """The caller's own notes: up to 16 entries."""
    output_expires_after: ExpiryRule | None = None
    """When the files with its results are removed."""


class RequestCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How far a batch is."""

    total: int
    """Lines of its input; 0 until that was read."""
    completed: int
    """Lines that were answered, and are in the output file."""
    failed: int
    """Lines that were not, and are in the errors file."""


class BatchErrorList(msgspec.Struct, frozen=True, kw_only=True):
    """Why a batch failed."""

    object: Literal["list"] = "list"
    """For clients that look for it."""
    data: list[BatchFailure]
    """The reasons."""


class BatchView(msgspec.Struct, frozen=True, kw_only=True):
    """A batch and how far it is."""

    id: str
    """What other requests name it by."""
    object: Literal["batch"] = "batch"
    """For clients that look for it."""
    endpoint: str
    """The inference route that its lines are for."""
    errors: BatchErrorList | None
    """Why it failed as a whole; lines that failed are in the errors file."""
    input_file_id: str
    """The file with its lines."""
    completion_window: Literal["24h"] = "24h"
    """The time it has."""
    status: BatchState
    """What it is doing, or how it ended."""
    output_file_id: str | None
    """The file with the answers, in the order of the input."""
    error_file_id: str | None
    """The file with the lines that have none."""
    created_at: int
    """When it was created."""
    in_progress_at: int | None
    """When its first line was asked for."""
    expires_at: int
    """When the lines that are left are given up."""
    finalizing_at: int | None
    """When its last line was answered."""
    completed_at: int | None
    """When its files were there."""
    failed_at: int | None
    """When it failed as a whole."""
    expired_at: int | None
    """When it ended with lines that had no time left."""
    cancelling_at: int | None
    """When its owner cancelled it."""
    cancelled_at: int | None
    """When it had ended for that reason."""
    request_counts: RequestCounts
    """How far it is."""
    metadata: dict[str, str] | None
    """The caller's own notes."""


class BatchList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of batches, the newest first."""

    object: Literal["list"] = "list"
    """For clients that look for it."""
    data: list[BatchView]
    """The batches of the page."""
    first_id: str | None
    """The id of the first one."""
    last_id: str | None
    """What to send as `after` for the next page."""
    has_more: bool
    """Whether there is a next page."""


def file_view(file: StoredFile) -> FileView:
    """Return a file as callers see it."""
    return FileView(
        id=file.id,
        bytes=file.size,
        created_at=file.created,
        expires_at=file.expires,
        filename=file.filename,
        purpose=file.purpose,
    )


def batch_view(batch: RequestBatch) -> BatchView:
    """Return a batch as callers see it."""
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
