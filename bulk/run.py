"""Runs a bulk job: reads rows, computes each distinct item once, writes parts in order."""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

import msgspec

from sluicegate.backends.bulk.runner import BulkRunner, Outcome
from sluicegate.backends.errors import BackendError
from sluicegate.bulk.errors import BulkStopped, too_many_failed
from sluicegate.bulk.files import InputFile
from sluicegate.bulk.items import ItemReader, distinct_items, item_keys
from sluicegate.bulk.options import BulkOptions
from sluicegate.bulk.output import OutputParts
from sluicegate.bulk.progress import ProgressReport
from sluicegate.bulk.reading import BadRow, Row, read_rows
from sluicegate.bulk.result_store import ResultStore
from sluicegate.bulk.results import StoredResult, make_result
from sluicegate.bulk.shared_cache import SharedCache
from sluicegate.gateway.cache.key import CacheKey, Prefix

# Two concurrent runs keep the device busy: one tokenizes while the other runs the model.
_RUNS_AT_ONCE = 2
# Groups of rows that are begun and not written yet. One more than runs, so that the next group is
# read meanwhile.
_LOOKAHEAD = 3
# The maximum characters of rows that run together, so that memory is bounded.
_MOST_CHARACTERS = 32 << 20


class _PartEnd(msgspec.Struct, frozen=True):
    """Marks the end of a part."""

    file: int
    part: int


class _Rows(msgspec.Struct, kw_only=True, eq=False):
    """Holds rows that run together, from reading to writing."""

    file: int
    first: int
    rows: list[Row]
    keys: list[CacheKey | BadRow] = []
    known: dict[bytes, StoredResult] = {}
    fresh: list[CacheKey] = []
    outcomes: Future[list[Outcome]] | None = None


def _next_rows(rows: Iterator[Row], most: int) -> list[Row]:
    """Return the next rows to run together: up to `most`, or fewer if they are large."""
    taken: list[Row] = []
    size = 0
    for row in islice(rows, most):
        taken.append(row)
        if isinstance(row, dict):
            size += sum([len(value) for value in row.values() if isinstance(value, str | bytes)])
        if size >= _MOST_CHARACTERS:
            break
    return taken


class BulkRun:
    """Runs the rest of a job.

    The output is reproducible. An item is always computed with the group of rows in which it occurs
    first, no matter how often the job is interrupted.
    """

    def __init__(
        self,
        *,
        runner: BulkRunner,
        options: BulkOptions,
        inputs: Sequence[InputFile],
        prefix: Prefix,
        store: ResultStore,
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
        """Run the job to its end.

        Raises:
            BulkStopped: the job cannot continue, or too many rows have failed.
        """
        self.rows = self._output.rows_before(self._inputs)
        self._progress.begin(self.rows)
        self._drain(self._read())
        self._progress.end(self.rows, self._output.failed)

    def run_part(self, file: int, part: int) -> None:
        """Run one part independently of other parts.

        Raises:
            BulkStopped: the part cannot continue.
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
            raise BulkStopped(f"the model cannot continue: {error}") from error
        finally:
            pool.shutdown(cancel_futures=True)

    def _read(self) -> Iterator[_Rows | _PartEnd]:
        """Yield the rows of unfinished parts, and a mark at the end of each part."""
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
        """Yield the rows of one part and its end; yield nothing if there are no rows."""
        options = self._options
        begin = first = part * options.part_rows
        end = begin + options.part_rows
        while some := _next_rows(rows, min(options.run_rows, end - first)):
            yield _Rows(file=file, first=first, rows=some)
            first += len(some)
        if first > begin:
            yield _PartEnd(file, part)

    def _begin(self, rows: _Rows, pool: ThreadPoolExecutor) -> _Rows:
        """Look up the items of rows, and start to run the items that are not known or running."""
        items = [self._items.read(row) for row in rows.rows]
        rows.keys = item_keys(self._prefix, items)
        distinct = {
            key: item
            for key, item in distinct_items(rows.keys, items).items()
            if key.address + key.tag not in self._in_flight
        }
        names = {key: key.address + key.tag for key in distinct}
        rows.known = self._store.find(names.values())
        missing = [key for key in distinct if names[key] not in rows.known]
        shared = self._cache.find(missing)
        if shared:
            found = {names[key]: result for key, result in shared.items()}
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
        results = rows.known | self._computed(rows)
        wanted = [key.address + key.tag for key in rows.keys if isinstance(key, CacheKey)]
        # Earlier groups of rows have computed and stored the other results.
        results |= self._store.find({name for name in wanted if name not in results})
        found = [
            results[key.address + key.tag]
            if isinstance(key, CacheKey)
            else StoredResult(code="bad_row", detail=key.detail)
            for key in rows.keys
        ]
        self._output.write(rows.file, rows.first, rows.rows, found)
        self.rows += len(found)
        self._progress.update(self.rows, self._output.failed)
        if self._max_errors is not None and self._output.failed > self._max_errors:
            raise too_many_failed(self._output.failed, self._max_errors)

    def _computed(self, rows: _Rows) -> dict[bytes, StoredResult]:
        """Wait for the results of a group of rows, store them and return them."""
        if rows.outcomes is None:
            return {}
        task = self._options.task
        made = [make_result(task, outcome) for outcome in rows.outcomes.result()]
        found = {
            key.address + key.tag: result for key, result in zip(rows.fresh, made, strict=True)
        }
        self._store.keep(found)
        self._cache.keep(dict(zip(rows.fresh, made, strict=True)))
        self._in_flight.difference_update(found)
        return found
