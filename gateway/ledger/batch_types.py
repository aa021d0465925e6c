"""Defines files and batch jobs as the ledger stores them. Times are Unix times in seconds."""

from enum import StrEnum

import msgspec

FAILED = "f"
"""If a line of a batch job fails, the id of its usage event ends in this suffix. If the line
succeeds later, it gets another event, whose id does not have the suffix."""


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a tenant's file.

    The file storage holds the content of the file under the same id.
    """

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
        """Whether the state can still change."""
        return self not in _ENDED


_ENDED = frozenset(
    {BatchState.COMPLETED, BatchState.FAILED, BatchState.EXPIRED, BatchState.CANCELLED}
)


class BatchFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Describes why a batch job or one of its lines failed."""

    code: str
    """An error code that stays the same between versions, for programs."""
    message: str
    """A text for people: what was wrong, and what to do."""
    line: int | None = None
    """The line's number in the input file, counted from 1."""
    param: str | None = None
    """The name of the invalid field in the line."""


class BatchPart(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Counts the results of one chunk of input lines.

    The file storage holds the results under `token`.
    """

    token: str
    completed: int
    failed: int
    expired: int = 0
    """How many of the failed lines had not been processed when the batch job expired."""
    size: int = 0
    """The size of the results in bytes."""

    def counts(self, kind: str) -> int:
        """Return how many lines this chunk has in the result file `kind` (`output` or `error`)."""
        return self.completed if kind == "output" else self.failed


class RequestBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a batch job and its progress.

    `parts` are the finished chunks of the input, in the order of the input. Every chunk has
    `part_lines` lines; the last one may have fewer. `moments` maps each state to the time when the
    batch job entered the state. `total` is the number of input lines, or `None` until the input has
    been read.
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
    """Whether the batch job has ended and its intermediate results are deleted."""

    @property
    def is_open(self) -> bool:
        """Whether a process must still run the batch job, or delete its intermediate results."""
        return not self.is_clean

    @property
    def completed(self) -> int:
        """The number of lines that succeeded."""
        return sum(part.completed for part in self.parts)

    @property
    def failed(self) -> int:
        """The number of lines that failed. They are in the error file."""
        return sum(part.failed for part in self.parts)
