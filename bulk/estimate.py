"""Estimates the time and cost of a job by running a sample of its rows."""

import time
from collections.abc import Sequence
from itertools import chain, islice

import msgspec

from sluicegate.backends.bulk.runner import BulkResult, BulkRunner
from sluicegate.bulk.files import InputFile
from sluicegate.bulk.items import ItemReader, distinct_items, item_keys
from sluicegate.bulk.options import BulkOptions
from sluicegate.bulk.progress import shown_duration
from sluicegate.bulk.reading import count_rows, read_rows
from sluicegate.gateway.cache.key import CacheKey, Prefix

_SAMPLE_ROWS = 20_000
# Items of the sample to run, which takes some seconds on one core.
_MEASURED_ITEMS = 512
_MILLION = 1_000_000


class BulkEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """Holds estimates for a job: its seconds on this machine, its tokens and its cost.

    `distinct_share` is the fraction of distinct rows in the sample. The whole input may have more
    repetitions.
    """

    rows: int
    sampled: int
    distinct_share: float
    bad_share: float
    tokens: float
    seconds: float
    money: float | None = None

    def lines(self) -> list[str]:
        """Return the estimate as lines of text."""
        found = [
            f"rows      {self.rows:,}",
            f"distinct  {self.distinct_share:.1%} of {self.sampled:,} sampled rows",
            f"tokens    about {self.tokens:,.0f}",
            f"time      about {shown_duration(self.seconds)} on this machine",
        ]
        if self.bad_share:
            found.insert(2, f"failing   {self.bad_share:.1%} of the sample")
        if self.money is not None:
            found.append(f"cost      about {self.money:,.2f}")
        return found


def estimate(
    runner: BulkRunner,
    options: BulkOptions,
    inputs: Sequence[InputFile],
    prefix: Prefix,
    *,
    price: float | None,
) -> BulkEstimate:
    """Return an estimate for a job; `price` is the price of a million tokens."""
    total = sum(map(count_rows, inputs))
    share = max(1, _SAMPLE_ROWS // len(inputs))
    columns = options.read_columns
    sample = chain.from_iterable(islice(read_rows(file, columns), share) for file in inputs)
    reader = ItemReader(options)
    items = [reader.read(row) for row in islice(sample, _SAMPLE_ROWS)]
    keys = item_keys(prefix, items)
    distinct = distinct_items(keys, items)
    # Take items evenly from the whole sample, because files are often sorted.
    step = max(1, len(distinct) // _MEASURED_ITEMS)
    measured = list(distinct.values())[::step][:_MEASURED_ITEMS]
    started = time.monotonic()
    outcomes = runner.run(measured)
    took = time.monotonic() - started
    done = [outcome for outcome in outcomes if isinstance(outcome, BulkResult)]
    sampled = max(1, len(items))
    expected = total * len(distinct) / sampled
    tokens = expected * sum(outcome.tokens for outcome in done) / max(1, len(measured))
    refused = len(distinct) * (1 - len(done) / max(1, len(measured)))
    unreadable = sum(not isinstance(key, CacheKey) for key in keys)
    return BulkEstimate(
        rows=total,
        sampled=len(items),
        distinct_share=len(distinct) / sampled,
        bad_share=(unreadable + refused) / sampled,
        tokens=tokens,
        seconds=expected * took / max(1, len(measured)),
        money=None if price is None else tokens / _MILLION * price,
    )
