"""Defines the values of files and batches that the ledger keeps; times are whole seconds."""

from enum import StrEnum

import msgspec

FAILED = "f"
"""Ends the ids of events of lines that failed: an answer later has an event of its own."""


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's file; its content is in the file storage, under its id."""

    id: str
    tenant: str
    purpose: str
    filename: str
    size: int
    created: int
    expires: int


class BatchState(StrEnum):
    """Names the states of a batch, as OpenAI's API does."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"

    @property
    def is_open(self) -> bool:
        """Whether it may still change."""
        return self not in _ENDED


_ENDED = frozenset(
    {BatchState.COMPLETED, BatchState.FAILED, BatchState.EXPIRED, BatchState.CANCELLED}
)


class BatchFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Says why a batch, or a line of it, failed."""

    code: str
    """What programs should look at; it is stable."""
    message: str
    """What was wrong, and what to do."""
    line: int | None = None
    """The line of the input, from 1 on."""
    param: str | None = None
    """The field of the line that is to blame."""


class BatchPart(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Counts the lines of consecutive input whose results are in the storage, under `token`."""

    token: str
    completed: int
    failed: int
    expired: int = 0
    """Those of the failed lines that came too late."""
    size: int = 0
    """The bytes of the results."""

    def counts(self, kind: str) -> int:
        """Return how many lines of `output` or of `error` it has."""
        return self.completed if kind == "output" else self.failed


class RequestBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch with its progress: the results of `parts`, in the order of its input.

    Every part but the last has `part_lines` lines. `moments` are when it got into each status, by
    the status; `total` is unknown until its input was read.
    """

    id: str
    tenant: str
    key: str
    endpoint: str
    input_file: str
    created: int
    expires: int
    part_lines: int
    status: BatchState = BatchState.VALIDATING
    metadata: dict[str, str] | None = None
    output_expires_after: int | None = None
    moments: dict[str, int] = {}
    total: int | None = None
    parts: tuple[BatchPart, ...] = ()
    failures: tuple[BatchFailure, ...] = ()
    output_file: str | None = None
    error_file: str | None = None
    is_clean: bool = False
    """It has ended, and its parts were deleted."""

    @property
    def is_open(self) -> bool:
        """Whether there is work left."""
        return not self.is_clean

    @property
    def completed(self) -> int:
        """The lines that were answered."""
        return sum(part.completed for part in self.parts)

    @property
    def failed(self) -> int:
        """The lines that were not, and are in the errors file."""
        return sum(part.failed for part in self.parts)
