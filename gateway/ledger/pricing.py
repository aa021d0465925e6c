"""Finds the price of a model at a time, and computes and rounds costs, with pure functions."""

from collections.abc import Collection
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final

import msgspec

from sluicegate.gateway.config.checks import ANY_MODEL
from sluicegate.gateway.config.document import PriceConfig
from sluicegate.gateway.errors import ConfigurationError
from sluicegate.gateway.ledger.store import to_nanoseconds
from sluicegate.gateway.ledger.types import Units

NANO: Final = 1_000_000_000
_EXACT: Final = 9
_PRICED: Final = ("hit", "computed", "row", "token")
# The currencies whose smallest unit is not a hundredth (ISO 4217).
_NO_DECIMALS: Final = "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF"
_THREE_DECIMALS: Final = "BHD IQD JOD KWD LYD OMR TND"
_DIGITS: Final = dict.fromkeys(_NO_DECIMALS.split(), 0) | dict.fromkeys(_THREE_DECIMALS.split(), 3)


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """A price, and the Unix time in nanoseconds from which it applies."""

    entry: PriceConfig
    since: int
    is_batch: bool = False
    is_free: bool = False

    @property
    def version(self) -> str:
        """The price's name on invoices. A new configuration document does not change the name."""
        kind = "+tokens" if self.is_free else "+batch" if self.is_batch else ""
        return f"{self.entry.model}@{self.entry.since}{kind}"

    def for_batches(self) -> "Price":
        """Return the price for batch jobs: `batch_percent` of the price of each unit, rounded."""
        percent = self.entry.batch_percent
        units = {name: (getattr(self.entry, name) * percent + 50) // 100 for name in _PRICED}
        entry = msgspec.structs.replace(self.entry, **units)
        return Price(entry=entry, since=self.since, is_batch=True)

    def for_tokens(self) -> "Price":
        """Return a price of 0, for tasks that use no model, such as counting tokens."""
        entry = msgspec.structs.replace(self.entry, **dict.fromkeys(_PRICED, 0))
        return Price(entry=entry, since=self.since, is_free=True)


def starts_at(entry: PriceConfig) -> int:
    """Return the Unix time in nanoseconds from which a price applies.

    A date without a time means midnight UTC.

    Raises:
        ConfigurationError: `since` is neither a date nor a time.
    """
    try:
        moment = datetime.fromisoformat(entry.since)
    except ValueError as error:
        raise ConfigurationError(
            f"`{entry.since}` is not a date such as `2026-01-01`", field="prices.since"
        ) from error
    return to_nanoseconds(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


class PriceList:
    """Finds the price of a model at a time.

    The result is the model's own price that took effect last. If the model has no own price at that
    time, the result is the price of `*` that took effect last.
    """

    def __init__(self, entries: Collection[PriceConfig]) -> None:
        prices = [Price(entry=entry, since=starts_at(entry)) for entry in entries]
        self._prices = sorted(prices, key=lambda p: p.since, reverse=True)
        self.models = sorted({entry.model for entry in entries} - {ANY_MODEL})
        """The models that have their own price at some time."""

    def at(self, model: str, time: int) -> Price:
        """Return the price of `model` at `time`. Before the first price, usage is free."""
        for name in (model, ANY_MODEL):
            for price in self._prices:
                if price.entry.model == name and price.since <= time:
                    return price
        currency = self._prices[0].entry.currency if self._prices else PriceConfig().currency
        return Price(
            entry=PriceConfig(model=ANY_MODEL, since="unpriced", currency=currency), since=0
        )

    def periods(self, since: int, until: int) -> list[tuple[int, int]]:
        """Split the time from `since` to `until` wherever the price of any model changes."""
        inside = {p.since for p in self._prices if since < p.since < until}
        edges = sorted({since, *inside, until})
        return list(pairwise(edges))


def amount(units: Units, price: PriceConfig) -> int:
    """Return the exact cost in 10^-9 of a currency unit.

    An item that shared the computation of an equal item (`collapsed`) costs as much as a cache hit.
    A failed item is free.
    """
    return (
        (units.hit + units.collapsed) * price.hit
        + units.computed * price.computed
        + units.rows * price.row
        + units.tokens * price.token
    )


def round_amount(exact: int, currency: str) -> int:
    """Round an amount to the smallest unit of `currency` (half to even).

    The amount and the result are in 10^-9 of a currency unit.
    """
    step = int(NANO // 10 ** digits(currency))
    steps, rest = divmod(exact, step)
    odd_tie = rest * 2 == step and steps % 2 == 1
    return (steps + (rest * 2 > step or odd_tie)) * step


def digits(currency: str) -> int:
    """Return the number of decimal places of `currency`, such as 2 for EUR."""
    return _DIGITS.get(currency, 2)


def decimal(nanos: int, places: int = _EXACT) -> str:
    """Format `nanos` (10^-9 of a currency unit) as a decimal number.

    The number is cut off after `places` decimal places.
    """
    sign = "-" if nanos < 0 else ""
    whole, rest = divmod(abs(nanos), NANO)
    return f"{sign}{whole}" + (f".{rest:09d}"[: places + 1] if places else "")
