"""Usage is the sum of events, by group, at the price of each event's time."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from msgspec import UNSET

from sluicegate.gateway.config.document import PriceConfig
from sluicegate.gateway.errors import InvalidRequest, NotFound
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.ledger.pricing import decimal
from sluicegate.gateway.ledger.store import to_datetime, to_nanoseconds
from sluicegate.gateway.ledger.types import GroupBy
from sluicegate.gateway.types import Usage
from tests.support.events import START, make_event
from tests.support.ledgers import Clock, record

SINCE = datetime(2026, 9, 1, tzinfo=UTC)
UNTIL = datetime(2026, 10, 1, tzinfo=UTC)
MID = datetime(2026, 9, 15, tzinfo=UTC)
PRICES = (
    PriceConfig(model="*", since="2026-01-01", hit=1, computed=10, row=100, token=1000),
    PriceConfig(model="*", since="2026-09-15", hit=2, computed=20),
    PriceConfig(model="big", since="2026-01-01", hit=7),
)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(database: str, clock: Clock) -> Iterator[Ledger]:
    with Ledger.create(database, clock=clock) as opened:
        opened.accounts.create_tenant("acme")
        yield opened


@pytest.mark.parametrize(
    ("since", "until"),
    [
        (datetime(1, 1, 1, tzinfo=UTC), UNTIL),
        (SINCE, datetime(9999, 12, 31, tzinfo=UTC)),
    ],
)
def test_a_time_beyond_what_the_ledger_holds_is_refused(
    ledger: Ledger, since: datetime, until: datetime
) -> None:
    with pytest.raises(InvalidRequest, match="too large for the ledger"):
        ledger.usage("acme", since, until)


def at(moment: datetime) -> int:
    return to_nanoseconds(moment)


def test_usage_adds_up_and_knows_its_cost(ledger: Ledger) -> None:
    used = Usage.of(hit=1, collapsed=2, computed=3, failed=4, rows=5, tokens=6)
    record(ledger, "w", 2, [make_event(n, time=at(SINCE), usage=used) for n in (1, 2)])

    (row,) = ledger.usage("acme", SINCE, UNTIL, prices=PRICES)

    assert (row.requests, row.items, row.failed) == (2, 20, 8)
    assert row.cost == decimal(2 * (3 * 1 + 3 * 10 + 5 * 100 + 6 * 1000))
    assert row.currency == "EUR"


def test_the_price_is_that_of_the_events_time(ledger: Ledger) -> None:
    before, after = MID - timedelta(microseconds=1), MID
    record(ledger, "w", 2, [make_event(1, time=at(before)), make_event(2, time=at(after))])

    (row,) = ledger.usage("acme", SINCE, UNTIL, prices=PRICES)

    assert row.cost == decimal(1 + 2)


def test_usage_ends_before_its_end(ledger: Ledger) -> None:
    events = [make_event(1, time=at(SINCE)), make_event(2, time=at(UNTIL))]
    record(ledger, "w", 2, events)

    (row,) = ledger.usage("acme", SINCE, UNTIL)

    assert row.requests == 1


def test_usage_is_grouped_by_what_is_asked(ledger: Ledger) -> None:
    record(
        ledger,
        "w",
        4,
        [
            make_event(1, time=at(SINCE), model="small", key="k1"),
            make_event(2, time=at(SINCE), model="big", key="k1"),
            make_event(3, time=at(MID), model="big", key="k2"),
            make_event(4, time=at(MID), model="big", key="k2"),
        ],
    )

    rows = ledger.usage("acme", SINCE, UNTIL, [GroupBy.DAY, GroupBy.MODEL], prices=PRICES)

    assert [(r.day, r.model, r.hit, r.cost) for r in rows] == [
        ("2026-09-01", "big", 1, decimal(7)),
        ("2026-09-01", "small", 1, decimal(1)),
        ("2026-09-15", "big", 2, decimal(14)),
    ]
    by_key = ledger.usage("acme", SINCE, UNTIL, [GroupBy.KEY, GroupBy.KEY])
    assert [(r.key, r.hit, r.model) for r in by_key] == [("k1", 2, UNSET), ("k2", 2, UNSET)]


@pytest.mark.parametrize("group", [GroupBy.DAY, GroupBy.TENANT])
def test_a_model_has_its_own_price_where_others_are_added_up(
    ledger: Ledger, group: GroupBy
) -> None:
    names = ["small", "big", "other", "big"]
    events = [make_event(n, time=at(SINCE), model=name) for n, name in enumerate(names)]
    record(ledger, "w", 4, events)

    (row,) = ledger.usage(None, SINCE, UNTIL, [group], prices=PRICES)
    (free,) = ledger.usage(None, SINCE, UNTIL, [group])

    assert (row.hit, row.cost) == (4, decimal(1 + 7 + 1 + 7))
    assert (free.hit, free.cost) == (4, decimal(0))


@pytest.mark.parametrize("group", list(GroupBy))
def test_every_group_adds_up_to_the_whole(ledger: Ledger, group: GroupBy) -> None:
    events = [make_event(n, time=at(SINCE), model=f"m{n % 3}", key=f"k{n % 2}") for n in range(12)]
    record(ledger, "w", 12, [msgspec.structs.replace(e, backend_region="us") for e in events])

    rows = ledger.usage("acme", SINCE, UNTIL, [group])

    assert sum(row.hit for row in rows) == 12
    assert all(getattr(row, group.value) for row in rows)


def test_a_tenant_sees_its_own_usage_only(ledger: Ledger) -> None:
    events = [make_event(n, time=at(SINCE), tenant=t) for n, t in enumerate(["acme", "other"])]
    record(ledger, "w", 2, events)

    (own,) = ledger.usage("acme", SINCE, UNTIL)
    everybody = ledger.usage(None, SINCE, UNTIL, [GroupBy.TENANT])

    assert own.requests == 1
    assert [row.tenant for row in everybody] == ["acme", "other"]


def test_no_usage_is_no_rows(ledger: Ledger) -> None:
    assert ledger.usage("acme", SINCE, UNTIL, [GroupBy.MODEL]) == []
    assert ledger.usage("acme", SINCE, SINCE) == []


def test_times_must_make_sense(ledger: Ledger) -> None:
    with pytest.raises(InvalidRequest, match="after"):
        ledger.usage("acme", UNTIL, SINCE)
    with pytest.raises(InvalidRequest, match="time zone"):
        ledger.usage("acme", SINCE.replace(tzinfo=None), UNTIL)


def test_an_invoice_has_a_line_per_model_and_price_and_is_computed_again_alike(
    ledger: Ledger,
) -> None:
    events = [make_event(n, time=at(MID if n > 2 else SINCE)) for n in range(1, 6)]
    record(ledger, "w", 6, [*events, make_event(6, time=at(SINCE), model="big")])

    invoice = ledger.invoice("acme", "2026-09", PRICES)

    assert [(line.model, line.price, line.units.hit, line.exact) for line in invoice.lines] == [
        ("big", "big@2026-01-01", 1, decimal(7)),
        ("sentiment", "*@2026-01-01", 2, decimal(2)),
        ("sentiment", "*@2026-09-15", 3, decimal(6)),
    ]
    assert ledger.invoice("acme", "2026-09", PRICES) == invoice


def test_an_invoice_holds_its_month_only(ledger: Ledger) -> None:
    last = UNTIL - timedelta(microseconds=1)
    events = [make_event(1, time=at(last)), make_event(2, time=at(UNTIL))]
    record(ledger, "w", 2, events)

    (line,) = ledger.invoice("acme", "2026-09", PRICES).lines

    assert line.units.requests == 1


def test_an_invoice_needs_a_tenant_and_a_month(ledger: Ledger) -> None:
    with pytest.raises(InvalidRequest):
        ledger.invoice("acme", "September", PRICES)
    with pytest.raises(NotFound):
        ledger.invoice("nobody", "2026-09", PRICES)


def test_requests_without_a_model_are_in_no_line_of_models(ledger: Ledger) -> None:
    """They were refused before it was known: counted by day, and on no invoice."""
    events = [make_event(1, time=at(SINCE), model=""), make_event(2, time=at(SINCE), model="m")]
    record(ledger, "w", 2, events)

    by_model = ledger.usage("acme", SINCE, UNTIL, [GroupBy.MODEL])
    (by_day,) = ledger.usage("acme", SINCE, UNTIL, [GroupBy.DAY])
    invoice = ledger.invoice("acme", f"{SINCE:%Y-%m}", PRICES)

    assert [row.model for row in by_model] == ["m"]
    assert by_day.requests == 2
    assert {line.model for line in invoice.lines} == {"m"}


def test_usage_of_some_models_is_theirs_alone(ledger: Ledger) -> None:
    names = ["a", "b", "c", ""]
    events = [make_event(n, time=at(SINCE), model=name) for n, name in enumerate(names)]
    record(ledger, "w", 4, events)

    (row,) = ledger.usage("acme", SINCE, UNTIL, models=["a", "c"])

    assert row.requests == 2


def test_lines_of_batches_cost_a_percentage_in_lines_of_their_own(ledger: Ledger) -> None:
    price = PriceConfig(hit=201, computed=1000, row=1000, token=21, batch_percent=50)
    usage = Usage.of(computed=1)
    events = [
        make_event(1, usage=usage),
        msgspec.structs.replace(make_event(2, usage=usage), batch=1),
    ]
    record(ledger, "w0-1", 2, events)
    month = to_datetime(START).strftime("%Y-%m")

    invoice = ledger.invoice("acme", month, [price])

    plain, batch = sorted(invoice.lines, key=lambda line: line.price)
    assert batch.price == f"{plain.price}+batch"
    assert (plain.units, plain.unit_prices.token) == (batch.units, "0.000000021")
    assert batch.unit_prices.hit == "0.000000101"
    assert batch.unit_prices.token == "0.000000011"
    assert batch.unit_prices.computed == "0.000000500"


def test_tokens_that_are_only_shown_cost_nothing_also_in_batches(ledger: Ledger) -> None:
    price = PriceConfig(hit=200, computed=1000)
    usage = Usage.of(hit=1, computed=2)
    events = [
        msgspec.structs.replace(make_event(number, usage=usage), task=task, batch=batch)
        for number, (task, batch) in enumerate(
            [("classify", 0), ("tokenize", 0), ("detokenize", 0), ("tokenize", 1)], start=1
        )
    ]
    record(ledger, "w0-1", 4, events)
    month = to_datetime(START).strftime("%Y-%m")

    invoice = ledger.invoice("acme", month, [price])
    since, until = to_datetime(START), to_datetime(START) + timedelta(days=1)
    lines = ledger.usage("acme", since, until, [GroupBy.TASK], prices=[price])

    plain, tokens = sorted(invoice.lines, key=lambda line: line.price)
    assert tokens.price == f"{plain.price}+tokens"
    assert (tokens.units.requests, tokens.units.computed) == (3, 6)
    assert (plain.exact, tokens.exact) == ("0.000002200", "0.000000000")
    assert {line.task: (line.computed, line.cost) for line in lines} == {
        "classify": (2, "0.000002200"),
        "tokenize": (4, "0.000000000"),
        "detokenize": (2, "0.000000000"),
    }
