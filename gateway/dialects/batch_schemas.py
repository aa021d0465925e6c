"""Defines the bodies of the routes of files and batches, as OpenAI's API has them."""

from typing import Annotated, Literal

import msgspec

from gateway.ledger.batch_types import Batch, BatchIssue, BatchStatus, StoredFile

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class FileObject(msgspec.Struct, frozen=True, kw_only=True):
    """A file."""

    id: str
    object: Literal["file"] = "file"
    """For clients that look for it."""
    bytes: int
    """Its size."""
    created_at: int
    """Seconds since 1970, as all moments here."""
    expires_at: int
    """When it is removed."""
    filename: str
    purpose: str
    """`batch`, or `batch_output` for the results of one."""
    status: Literal["processed"] = "processed"


class FileList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of files."""

    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    """What to send as `after` for the next page."""
    has_more: bool


class FileDeleted(msgspec.Struct, frozen=True, kw_only=True):
    """The confirmation that a file was deleted."""

    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


class ExpiresAfter(msgspec.Struct, frozen=True, kw_only=True):
    """When a file is removed."""

    anchor: Literal["created_at"]
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
    output_expires_after: ExpiresAfter | None = None


class RequestCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How far a batch is."""

    total: int
    """Lines of its input; 0 until that was read."""
    completed: int
    failed: int


class BatchErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Why a batch failed."""

    object: Literal["list"] = "list"
    data: list[BatchIssue]


class BatchObject(msgspec.Struct, frozen=True, kw_only=True):
    """A batch and how far it is."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    errors: BatchErrors | None
    """Why it failed as a whole; lines that failed are in the errors file."""
    input_file_id: str
    completion_window: Literal["24h"] = "24h"
    status: BatchStatus
    output_file_id: str | None
    """The file with the answers."""
    error_file_id: str | None
    """The file with the lines that have none."""
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    metadata: dict[str, str] | None


class BatchList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of batches, the newest first."""

    object: Literal["list"] = "list"
    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    """What to send as `after` for the next page."""
    has_more: bool


def file_object(file: StoredFile) -> FileObject:
    """Return a file as callers see it."""
    return FileObject(
        id=file.id,
        bytes=file.size,
        created_at=file.created,
        expires_at=file.expires,
        filename=file.filename,
        purpose=file.purpose,
    )


def batch_object(batch: Batch) -> BatchObject:
    """Return a batch as callers see it."""
    return BatchObject(
        id=batch.id,
        endpoint=batch.endpoint,
        errors=BatchErrors(data=list(batch.issues)) if batch.issues else None,
        input_file_id=batch.input_file,
        status=batch.status,
        output_file_id=batch.output_file,
        error_file_id=batch.error_file,
        created_at=batch.created,
        expires_at=batch.expires,
        request_counts=RequestCounts(
            total=batch.total or 0, completed=batch.completed, failed=batch.failed
        ),
        metadata=batch.metadata,
        in_progress_at=batch.moments.get("in_progress"),
        finalizing_at=batch.moments.get("finalizing"),
        completed_at=batch.moments.get("completed"),
        failed_at=batch.moments.get("failed"),
        expired_at=batch.moments.get("expired"),
        cancelling_at=batch.moments.get("cancelling"),
        cancelled_at=batch.moments.get("cancelled"),
    )
