"""Runs a bulk job: reads rows, answers each distinct item once, writes whole parts in order."""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

import msgspec

from backends.bulk.runner import BulkRunner, Outcome
from backends.errors import BackendError
from bulk.answer_store import AnswerStore
from bulk.answers import BulkAnswer, make_answer
from bulk.errors import BulkStopped, too_many_failed
from bulk.items import ItemReader, item_keys
from bulk.options import BulkOptions
from bulk.output import OutputParts
from bulk.places import InputFile
from bulk.progress import ProgressReport
from bulk.reading import BadRow, Row, read_rows
from bulk.shared_cache import SharedCache
from gateway.cache.key import CacheKey, Prefix

# Two keep the device busy: one is tokenized while the other runs.
_RUNS_AT_ONCE = 2
# Begun and not yet written: another is read and looked up meanwhile.
_LOOKAHEAD = 3
# Of the texts of rows that are run together, whatever their number, so that memory is bounded.
_LOT_CHARACTERS = 32 << 20


class _PartEnd(msgspec.Struct, frozen=True):
    """Marks that no row of a part comes any more."""

    file: int
    part: int


class _Rows(msgspec.Struct, kw_only=True, eq=False):
    """Holds rows that are run together, from their reading to their writing."""

    file: int
    first: int
    rows: list[Row]
    keys: list[CacheKey | BadRow] = []
    known: dict[bytes, BulkAnswer] = {}
    fresh: list[CacheKey] = []
    outcomes: Future[list[Outcome]] | None = None


def _lot(rows: Iterator[Row], most: int) -> list[Row]:
    """Return the next rows; fewer where they are large, which follows from the rows alone."""
    lot: list[Row] = []
    size = 0
    for row in islice(rows, most):
        lot.append(row)
        if isinstance(row, dict):
            size += sum([len(value) for value in row.values() if isinstance(value, str | bytes)])
        if size >= _LOT_CHARACTERS:
            break
    return lot


class BulkRun:
    """Runs what is left of a job.

    Which rows are computed together follows from their places alone: a row is computed with those
    among which its item comes first, however often the job is interrupted.
    """

    def __init__(
        self,
        *,
        runner: BulkRunner,
        options: BulkOptions,
        inputs: Sequence[InputFile],
        prefix: Prefix,
        store: AnswerStore,
        cache: SharedCache,
        output: OutputParts,
        progress: ProgressReport,
        max_errors: int | None,
    ) -> None:
        self._runner = runner
        self._options = options
        self._inputs = inputs
        self._prefix = prefix
        self._store = store
        self._cache = cache
        self._output = output
        self._progress = progress
        self._max_errors = max_errors
        self._items = ItemReader(options)
        self._in_flight: set[bytes] = set()
        self._is_by_parts = False
        self.rows = 0

    def run(self) -> None:
        """Run to the end.

        Raises:
            BulkStopped: it cannot go on, or too many rows have failed.
        """
        self.rows = self._output.rows_before(self._inputs)
        self._progress.begin(self.rows)
        self._drain(self._read())
        self._progress.end(self.rows, self._output.failed)

    def run_part(self, file: int, part: int) -> None:
        """Run one part as if there were no other.

        Raises:
            BulkStopped: it cannot go on.
        """
        self._is_by_parts = True
        skip = part * self._options.part_rows
        rows = read_rows(self._inputs[file], self._options.read_columns, skip=skip)
        self._drain(self._read_part(rows, file, part))

    def _drain(self, source: Iterator[_Rows | _PartEnd]) -> None:
        begun: deque[_Rows | _PartEnd] = deque()
        pool = ThreadPoolExecutor(_RUNS_AT_ONCE, thread_name_prefix="bulk-run")
        try:
            for each in source:
                begun.append(self._begin(each, pool) if isinstance(each, _Rows) else each)
                while len(begun) > _LOOKAHEAD:
                    self._finish(begun.popleft())
            while begun:
                self._finish(begun.popleft())
        except BackendError as error:
            raise BulkStopped(f"the model cannot run any more: {error}") from error
        finally:
            pool.shutdown(cancel_futures=True)

    def _read(self) -> Iterator[_Rows | _PartEnd]:
        """Yield the rows that are not written yet, and where parts end."""
        for number, file in enumerate(self._inputs):
            part = self._output.parts_of(number)
            skip = part * self._options.part_rows
            rows = read_rows(file, self._options.read_columns, skip=skip)
            is_more = True
            while is_more:
                is_more = False
                for each in self._read_part(rows, number, part):
                    is_more = True
                    yield each
                part += 1

    def _read_part(self, rows: Iterator[Row], file: int, part: int) -> Iterator[_Rows | _PartEnd]:
        """Yield the rows of one part and then its end; nothing where there are none."""
        options = self._options
        begin = first = part * options.part_rows
        end = begin + options.part_rows
        while some := _lot(rows, min(options.run_rows, end - first)):
            yield _Rows(file=file, first=first, rows=some)
            first += len(some)
        if first > begin:
            yield _PartEnd(file, part)

    def _begin(self, rows: _Rows, pool: ThreadPoolExecutor) -> _Rows:
        """Look up the items of rows, and run those that nobody has answered or begun."""
        items = [self._items.read(row) for row in rows.rows]
        rows.keys = item_keys(self._prefix, items)
        distinct = {
            key: item
            for key, item in zip(rows.keys, items, strict=True)
            if isinstance(key, CacheKey) and key.address + key.tag not in self._in_flight
        }
        names = {key: key.address + key.tag for key in distinct}
        rows.known = self._store.find(names.values())
        missing = [key for key in distinct if names[key] not in rows.known]
        shared = self._cache.find(missing)
        if shared:
            found = {names[key]: answer for key, answer in shared.items()}
            self._store.keep(found)
            rows.known |= found
        rows.fresh = [key for key in missing if key not in shared]
        self._in_flight.update(names[key] for key in rows.fresh)
        if rows.fresh:
            rows.outcomes = pool.submit(self._runner.run, [distinct[key] for key in rows.fresh])
        return rows

    def _finish(self, rows: _Rows | _PartEnd) -> None:
        if isinstance(rows, _PartEnd):
            usage = self._store.usage() if self._is_by_parts else None
            self._output.end_part(rows.file, rows.part, usage)
            return
        answers = rows.known | self._computed(rows)
        wanted = [key.address + key.tag for key in rows.keys if isinstance(key, CacheKey)]
        # Rows before these computed the others, and have been stored.
        answers |= self._store.find({name for name in wanted if name not in answers})
        found = [
            answers[key.address + key.tag]
            if isinstance(key, CacheKey)
            else BulkAnswer(code="bad_row", detail=key.detail)
            for key in rows.keys
        ]
        self._output.write(rows.file, rows.first, rows.rows, found)
        self.rows += len(found)
        self._progress.update(self.rows, self._output.failed)
        if self._max_errors is not None and self._output.failed > self._max_errors:
            raise too_many_failed(self._output.failed, self._max_errors)

    def _computed(self, rows: _Rows) -> dict[bytes, BulkAnswer]:
        """Return the answers that were computed for rows, once they are stored."""
        if rows.outcomes is None:
            return {}
        task = self._options.task
        made = [make_answer(task, outcome) for outcome in rows.outcomes.result()]
        found = {
            key.address + key.tag: answer for key, answer in zip(rows.fresh, made, strict=True)
        }
        self._store.keep(found)
        self._cache.keep(dict(zip(rows.fresh, made, strict=True)))
        self._in_flight.difference_update(found)
        return found
