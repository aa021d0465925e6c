"""What the past costs never changes: prices that have begun are kept as they were published."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import msgspec
import pytest
from sqlalchemy import select

from sluicegate.gateway.config.document import PriceConfig
from sluicegate.gateway.errors import ConfigurationError
from sluicegate.gateway.ledger import schema
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.ledger.pricing import decimal
from sluicegate.gateway.ledger.store import to_nanoseconds
from tests.support.events import make_event
from tests.support.ledgers import Clock, record

SEPTEMBER = datetime(2026, 9, 1, tzinfo=UTC)
MID = datetime(2026, 9, 15, 12, tzinfo=UTC)
OCTOBER = datetime(2026, 10, 1, tzinfo=UTC)
FIRST = PriceConfig(model="*", since="2026-01-01", hit=10, computed=100)
BIG = PriceConfig(model="big", since="2026-09-01", hit=20)
COMING = PriceConfig(model="*", since="2026-12-01", hit=30)
PRICES = (FIRST, BIG, COMING)
replace = msgspec.structs.replace


@pytest.fixture
def clock() -> Clock:
    return Clock(to_nanoseconds(MID))


@pytest.fixture
def ledger(database: str, clock: Clock) -> Iterator[Ledger]:
    """Usage of `sentiment` and `big`, and prices that are published."""
    with Ledger.create(database, clock=clock) as opened:
        opened.accounts.create_tenant("acme")
        opened.prices.publish(PRICES)
        events = [make_event(1, time=to_nanoseconds(SEPTEMBER), model="sentiment")]
        record(opened, "w0-1", 2, [*events, make_event(2, time=clock.now, model="big")])
        yield opened


def cost(ledger: Ledger, prices: Sequence[PriceConfig] = ()) -> int:
    (row,) = ledger.usage("acme", SEPTEMBER, OCTOBER, prices=prices)
    return int(row.cost.replace(".", ""))


@pytest.mark.parametrize(
    ("wanted", "named"),
    [
        ((replace(FIRST, hit=99), BIG, COMING), r"`\*` from 2026-01-01 .*`hit` from 10 to 99"),
        ((replace(BIG, currency="USD"), FIRST), r"`big` from 2026-09-01 .*changed"),
        ((FIRST, COMING), r"`big` from 2026-09-01 .*removed"),
        ((), r"`\*` from 2026-01-01 .*removed"),
        ((PriceConfig(),), r"`\*` from 2026-01-01 .*changed"),
        ((*PRICES, PriceConfig(model="*", since="2026-09-10", hit=1)), None),
        ((*PRICES, PriceConfig(model="sentiment", since="2026-02-01", hit=1)), "`sentiment`"),
    ],
    ids=["edit", "currency", "removal", "all", "default", "no usage by it", "backdated"],
)
def test_a_document_cannot_change_what_the_past_costs(
    ledger: Ledger, wanted: Sequence[PriceConfig], named: str | None
) -> None:
    before = cost(ledger)

    for attempt in (ledger.prices.check, ledger.prices.publish):
        if named is None:
            attempt(wanted)
        else:
            with pytest.raises(ConfigurationError, match=named):
                attempt(wanted)

    assert cost(ledger) == before == 10 + 20
    assert (ledger.prices.entries() == sorted_by_date(PRICES)) == (named is not None)


def test_prices_that_have_not_begun_follow_the_document(ledger: Ledger) -> None:
    edited = replace(COMING, hit=31)
    added = PriceConfig(model="big", since="2026-11-01", hit=5)

    ledger.prices.publish((FIRST, BIG, edited, added))
    ledger.prices.publish((FIRST, BIG, edited), former=(FIRST, BIG, edited, added))

    assert ledger.prices.entries() == sorted_by_date((FIRST, BIG, edited))


def test_prices_to_come_of_another_region_stay(ledger: Ledger) -> None:
    theirs = PriceConfig(model="big", since="2026-11-01", hit=5)
    ledger.prices.publish((*PRICES, theirs))

    ledger.prices.publish(PRICES, former=PRICES)

    assert ledger.prices.entries() == sorted_by_date((*PRICES, theirs))


def test_a_price_that_has_begun_meanwhile_is_kept(ledger: Ledger, clock: Clock) -> None:
    clock.now = to_nanoseconds(datetime(2026, 12, 2, tzinfo=UTC))

    with pytest.raises(ConfigurationError, match=r"`\*` from 2026-12-01 on is in effect"):
        ledger.prices.publish((FIRST, BIG))


def test_usage_and_invoices_go_by_the_prices_of_the_ledger(ledger: Ledger) -> None:
    other = (replace(FIRST, hit=1000),)

    invoice = ledger.invoice("acme", "2026-09", other)

    assert cost(ledger, other) == 30
    assert [(line.model, line.unit_prices.hit) for line in invoice.lines] == [
        ("big", decimal(20)),
        ("sentiment", decimal(10)),
    ]


def test_the_default_of_documents_without_prices_may_be_replaced_until_there_is_usage(
    database: str, clock: Clock
) -> None:
    with Ledger.create(database, clock=clock) as ledger:
        ledger.prices.publish((PriceConfig(),))
        ledger.prices.publish((FIRST,))
        assert ledger.prices.entries() == [FIRST]


def test_usage_that_was_free_stays_free(database: str, clock: Clock) -> None:
    with Ledger.create(database, clock=clock) as ledger:
        ledger.prices.publish((PriceConfig(),))
        record(ledger, "w0-1", 1, [make_event(1, time=to_nanoseconds(SEPTEMBER))])

        with pytest.raises(ConfigurationError, match="past usage"):
            ledger.prices.publish((FIRST,))

        ledger.prices.publish((PriceConfig(), COMING))
        assert ledger.usage("acme", SEPTEMBER, OCTOBER)[0].cost == decimal(0)


def test_what_was_published_when_is_in_the_history(ledger: Ledger, clock: Clock) -> None:
    edited = replace(COMING, hit=31)
    clock.advance(1)
    ledger.prices.publish((FIRST, BIG, edited))

    with ledger.prices._store.reading() as connection:
        table = schema.prices
        history = connection.execute(select(table).order_by(table.c.recorded)).all()
    assert {(row.model, row.since, row.hit) for row in history} == {
        (price.model, price.since, price.hit) for price in (*PRICES, edited)
    }
    assert history[-1].hit == edited.hit


def sorted_by_date(prices: Sequence[PriceConfig]) -> list[PriceConfig]:
    return sorted(prices, key=lambda price: (price.since, price.model))


def test_gateways_that_start_at_once_publish_the_same_prices(database: str, clock: Clock) -> None:
    count = 8
    barrier = threading.Barrier(count)

    def publish(ledger: Ledger) -> None:
        ledger.prices.entries()
        barrier.wait()
        ledger.prices.publish(PRICES)

    with Ledger.create(database, clock=clock) as ledger, ThreadPoolExecutor(count) as threads:
        for each in [threads.submit(publish, ledger) for _ in range(count)]:
            each.result()

        assert ledger.prices.entries() == sorted_by_date(PRICES)


def test_what_a_restored_ledger_lacks_is_kept_though_it_has_begun(
    ledger: Ledger, clock: Clock
) -> None:
    """As it was published before it began, usage that came back meanwhile is of that price."""
    agreed, clock.now = clock.now, to_nanoseconds(datetime(2026, 12, 2, tzinfo=UTC))
    lost = PriceConfig(model="big", since="2026-12-01", hit=7)
    record(ledger, "w0-2", 1, [make_event(3, time=clock.now, model="big")])
    with pytest.raises(ConfigurationError):
        ledger.prices.publish((*PRICES, lost))

    ledger.prices.publish((*PRICES, lost), agreed=agreed)

    until = datetime(2026, 12, 3, tzinfo=UTC)
    (row,) = ledger.usage("acme", datetime(2026, 12, 1, tzinfo=UTC), until)
    assert row.cost == decimal(7)
    for wanted in (PRICES, (*PRICES, replace(lost, hit=8))):
        with pytest.raises(ConfigurationError, match="in effect"):
            ledger.prices.publish(wanted, agreed=agreed)


def test_a_price_may_begin_before_the_years_that_sql_can_hold(database: str, clock: Clock) -> None:
    always = PriceConfig(model="*", since="0001-01-01", hit=1)
    with Ledger.create(database, clock=clock) as ledger:
        ledger.prices.publish((COMING,))
        ledger.prices.publish((COMING, always))

        record(ledger, "w0-1", 1, [make_event(1, time=to_nanoseconds(SEPTEMBER))])
        with pytest.raises(ConfigurationError, match="in effect"):
            ledger.prices.publish((COMING, replace(always, hit=2)))
        assert cost(ledger) == 1
