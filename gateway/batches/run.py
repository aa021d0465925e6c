"""Runs one batch to its end, or as far as it may.

Lines are answered in parts. The results of a part are stored, and then the ledger takes note of it:
after a crash the lines of the part that was under way are asked again, under the same ids. So
each line is in the output once and billed once. What is stored and not noted is never read.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import msgspec

from sluicegate.gateway.batches.answering import LineAnswerer
from sluicegate.gateway.batches.lines import (
    InputRefused,
    Line,
    LinePosition,
    LinePositions,
    index_lines,
    oversize_failure,
    read_lines,
    split_lines,
)
from sluicegate.gateway.batches.part_results import PartResults
from sluicegate.gateway.errors import DependencyUnavailable, NotFound
from sluicegate.gateway.ledger.batch_types import (
    BatchFailure,
    BatchPart,
    BatchState,
    RequestBatch,
    StoredFile,
)
from sluicegate.gateway.ledger.batches import BatchStore, in_status
from sluicegate.gateway.storage.base import FileStorage
from sluicegate.gateway.storage.build import file_object
from sluicegate.gateway.workers.backoff import StoppableBackoff

T = TypeVar("T")
_log = logging.getLogger(__name__)
# So much of an input is in memory at a time, and a line more.
_MOST_BYTES = 8 << 20


class BatchBounds(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on batches: lines, bytes of a line and of results, lines at a time, life of files."""

    max_lines: int
    max_line_bytes: int
    max_output_bytes: int
    in_flight: int
    keep_files: int


class BatchRun:
    """Runs a batch on which `holder` has the lease; `halt` ends it early, with what is done.

    `results_folder` has room for the results of the part under way. While the storage or the
    ledger is down, it waits and tries again.
    """

    def __init__(
        self,
        batch: RequestBatch,
        *,
        holder: str,
        batches: BatchStore,
        storage: FileStorage,
        answerer: LineAnswerer,
        bounds: BatchBounds,
        results_folder: Path,
    ) -> None:
        self.batch = batch
        self.halt = asyncio.Event()
        self._holder = holder
        self._batches = batches
        self._storage = storage
        self._answerer = answerer
        self._bounds = bounds
        self._results_folder = results_folder

    async def run(self) -> None:
        """Run the batch.

        Raises:
            LeaseLost: another process runs it.
        """
        if self.batch.status is BatchState.CANCELLING:
            self.halt.set()
        if self.batch.status.is_open:
            try:
                await self._answer_all()
            except InputRefused as refused:
                await self._fail(refused.failure)
            else:
                await self._finish()
        await self._persistently(self._storage.delete_below, self._folder)
        await self._change(lambda batch: msgspec.structs.replace(batch, is_clean=True))

    @property
    def _folder(self) -> str:
        return f"parts/{self.batch.id}"

    async def _answer_all(self) -> None:
        try:
            index = await self._persistently(self._index)
        except NotFound as missing:
            detail = "The input file was deleted."
            raise InputRefused(BatchFailure(code="missing_file", message=detail)) from missing
        if self.batch.status is BatchState.VALIDATING:
            await self._change(lambda batch: _begun(batch, index.total, self._batches.now()))
        while not self.halt.is_set() and len(self.batch.parts) < len(index.starts):
            with closing(await self._persistently(PartResults, self._results_folder)) as results:
                numbers = await self._answer_part(index, results)
                await self._keep(numbers, results)

    async def _answer_part(self, index: LinePositions, results: PartResults) -> list[int]:
        """Add the results of a part, and return the numbers of its lines.

        Long lines are read some at a time.
        """
        begin, numbers = index.starts[len(self.batch.parts)], list[int]()
        while not self.halt.is_set() and (left := self.batch.part_lines - len(numbers)):
            lines, begin = await self._persistently(self._read, begin, index.repeated, left)
            if not lines:
                break
            await self._answer(lines, results)
            numbers += [line.number for line in lines]
        return numbers

    async def _answer(self, lines: Sequence[Line], results: PartResults) -> None:
        """Add the results of lines, of fewer where it was halted."""
        places = asyncio.Semaphore(self._bounds.in_flight)
        most = self._bounds.max_output_bytes - sum(part.size for part in self.batch.parts)

        async def answer(line: Line) -> None:
            # A result keeps its place until it is on disk, so that few are in memory.
            async with places:
                if self.halt.is_set():
                    return
                if results.size >= most and line.failure is None:
                    line = msgspec.structs.replace(line, failure=oversize_failure(line))
                result = await self._answerer.answer(self.batch, line, self.halt, places)
                if result is not None:
                    await self._persistently(results.add, line.number, result)

        async with asyncio.TaskGroup() as group:
            for line in lines:
                group.create_task(answer(line))

    async def _keep(self, numbers: Sequence[int], results: PartResults) -> None:
        """Store the results of lines, and then note them."""
        total, completed, expired = results.counts()
        if not total:
            return
        part = BatchPart(
            token=f"{len(self.batch.parts)}-{secrets.token_hex(4)}",
            completed=completed,
            failed=total - completed,
            expired=expired,
            size=results.size,
        )
        for kind, is_success in (("output", True), ("error", False)):
            if part.counts(kind):
                name = self._name(part, kind)
                await self._persistently(self._write, name, numbers, results, is_success)
        parts = (*self.batch.parts, part)
        await self._change(lambda batch: msgspec.structs.replace(batch, parts=parts))

    async def _finish(self) -> None:
        """Put the output files together, and end the batch."""
        if self.batch.status is BatchState.IN_PROGRESS and not self.halt.is_set():
            await self._change(
                lambda batch: _unless_cancelled(batch, BatchState.FINALIZING, self._batches.now())
            )
        output = await self._persistently(self._assemble, "output")
        error = await self._persistently(self._assemble, "error")

        def ended(batch: RequestBatch) -> RequestBatch:
            status = BatchState.COMPLETED
            if batch.status is BatchState.CANCELLING:
                status = BatchState.CANCELLED
            elif any(part.expired for part in batch.parts):
                status = BatchState.EXPIRED
            batch = in_status(batch, status, self._batches.now())
            return msgspec.structs.replace(
                batch, output_file=output and output.id, error_file=error and error.id
            )

        await self._end(ended, [file for file in (output, error) if file is not None])

    async def _fail(self, failure: BatchFailure) -> None:
        now = self._batches.now()
        await self._end(
            lambda batch: msgspec.structs.replace(
                in_status(batch, BatchState.FAILED, now), failures=(failure,)
            ),
            [],
        )

    async def _end(
        self, change: Callable[[RequestBatch], RequestBatch], files: Sequence[StoredFile]
    ) -> None:
        def end() -> RequestBatch:
            return self._batches.end(self.batch.id, self._holder, change, files=files)

        self.batch = await self._persistently(end)
        _log.info(
            "a batch has ended", extra={"batch": self.batch.id, "status": self.batch.status.value}
        )

    async def _change(self, change: Callable[[RequestBatch], RequestBatch]) -> None:
        self.batch = await self._persistently(
            self._batches.change, self.batch.id, self._holder, change
        )

    def _index(self) -> LinePositions:
        content = self._storage.read(file_object(self.batch.input_file))
        lines = split_lines(content, longest=self._bounds.max_line_bytes)
        return index_lines(lines, part_lines=self.batch.part_lines, most=self._bounds.max_lines)

    def _read(
        self, begin: LinePosition, repeated: frozenset[int], most: int
    ) -> tuple[list[Line], LinePosition]:
        content = self._storage.read(file_object(self.batch.input_file), begin.start)
        return read_lines(
            split_lines(content, longest=self._bounds.max_line_bytes),
            endpoint=self.batch.endpoint,
            begin=begin,
            repeated=repeated,
            most=most,
            most_bytes=_MOST_BYTES,
        )

    def _write(
        self,
        name: str,
        numbers: Sequence[int],
        results: PartResults,
        is_success: bool,  # noqa: FBT001 - `_persistently` passes no names
    ) -> None:
        with self._storage.writing(name) as write:
            for chunk in results.content(numbers, is_success=is_success):
                write(chunk)

    def _assemble(self, kind: str) -> StoredFile | None:
        """Write the parts of one kind to a file, the same whenever it is done; `None`: no lines."""
        parts = [part for part in self.batch.parts if part.counts(kind)]
        if not parts:
            return None
        file, now, size = f"file-{kind}-{self.batch.id}", self._batches.now(), 0
        with self._storage.writing(file_object(file)) as write:
            for chunk in self._content(parts, kind):
                write(chunk)
                size += len(chunk)
        return StoredFile(
            id=file,
            tenant=self.batch.tenant,
            purpose="batch_output",
            filename=f"{self.batch.id}_{kind}.jsonl",
            size=size,
            created=now,
            expires=now + (self.batch.output_expires_after or self._bounds.keep_files),
        )

    def _content(self, parts: Iterable[BatchPart], kind: str) -> Iterator[bytes]:
        for part in parts:
            yield from self._storage.read(self._name(part, kind))

    def _name(self, part: BatchPart, kind: str) -> str:
        return f"{self._folder}/{part.token}.{kind}"

    async def _persistently(self, call: Callable[..., T], *arguments: object) -> T:
        """Return what `call` returns in a thread; it is repeated while a dependency is away."""
        backoff = StoppableBackoff(longest=5.0)
        while True:
            try:
                return await asyncio.to_thread(call, *arguments)
            except DependencyUnavailable as error:
                if not backoff.failures:
                    _log.warning("a batch waits", extra={"reason": error.detail})
                await asyncio.sleep(backoff.failed())


def _begun(batch: RequestBatch, total: int, now: int) -> RequestBatch:
    """Return a batch whose input was read."""
    batch = msgspec.structs.replace(batch, total=total)
    return _unless_cancelled(batch, BatchState.IN_PROGRESS, now)


def _unless_cancelled(batch: RequestBatch, status: BatchState, now: int) -> RequestBatch:
    """Return `batch` in `status`, unless its cancellation came first."""
    return batch if batch.status is BatchState.CANCELLING else in_status(batch, status, now)
