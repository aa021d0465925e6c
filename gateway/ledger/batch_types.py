"""Defines files and batch jobs as the ledger stores them. Times are Unix times in seconds."""

from enum import StrEnum

import msgspec

FAILED = "f"
"""Suffix of the id of a failed line's usage event. If the line succeeds later, it gets a new event
without this suffix."""


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a tenant's file. The file storage holds its content under the same id."""

    id: str
    tenant: str
    purpose: str
    filename: str
    size: int
    created: int
    expires: int


class BatchState(StrEnum):
    """Names the states of a batch job, as in OpenAI's API."""

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
        """Whether the state may still change."""
        return self not in _ENDED


_ENDED = frozenset(
    {BatchState.COMPLETED, BatchState.FAILED, BatchState.EXPIRED, BatchState.CANCELLED}
)


class BatchFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Says why a batch job or one of its lines failed."""

    code: str
    """A stable code for programs."""
    message: str
    """What was wrong, and what to do."""
    line: int | None = None
    """The line's number in the input file, counted from 1."""
    param: str | None = None
    """The invalid field of the line."""


class BatchPart(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Counts the results of one chunk of input lines.

    The file storage holds these results under `token`.
    """

    token: str
    completed: int
    failed: int
    expired: int = 0
    """The failed lines that had not run when the batch job expired."""
    size: int = 0
    """The size of the results in bytes."""

    def counts(self, kind: str) -> int:
        """Return the number of lines for the `output` file or the `error` file."""
        return self.completed if kind == "output" else self.failed


class RequestBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a batch job and its progress.

    `parts` are the chunks of input that are finished, in the order of the input. Every chunk but
    the last has `part_lines` lines. `moments` maps each state to the time when the batch job
    entered it. `total` is the number of input lines; it is `None` until the input has been read.
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
    """The batch job has ended, and its intermediate results are deleted."""

    @property
    def is_open(self) -> bool:
        """Whether a process must still run the batch job or clean up after it."""
        return not self.is_clean

    @property
    def completed(self) -> int:
        """The number of lines that succeeded."""
        return sum(part.completed for part in self.parts)

    @property
    def failed(self) -> int:
        """The number of lines that failed. They are in the error file."""
        return sum(part.failed for part in self.parts)
