"""A tenant's month is compared with its budget: each threshold is told once, and may refuse."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest
import sqlalchemy

from sluicegate.gateway.config.document import PriceConfig
from sluicegate.gateway.errors import InvalidRequest, NotFound
from sluicegate.gateway.ledger import budgets, usage
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.ledger.pricing import NANO
from sluicegate.gateway.ledger.types import Budget
from sluicegate.gateway.types import Usage
from tests.support.events import START, make_event
from tests.support.ledgers import Clock, principals, record

EURO = PriceConfig(model="*", since="2026-01-01", currency="EUR", hit=NANO)
DAY = 86_400
SECOND = 1_000_000_000
SEPTEMBER = 30 * DAY
SQLITE = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
"""For what depends on no database."""


@pytest.fixture
def clock() -> Clock:
    return Clock(START + 10 * DAY * SECOND)


@pytest.fixture
def ledger(database: str, clock: Clock) -> Iterator[Ledger]:
    with Ledger.create(database, clock=clock) as opened:
        opened.prices.publish([EURO])
        for tenant in ("acme", "beta"):
            opened.accounts.create_tenant(tenant)
            opened.accounts.create_key(tenant, key_hash=tenant)
        yield opened


def spend(ledger: Ledger, euros: int, *, at: int, tenant: str = "acme") -> None:
    """Record usage that costs so much, `at` so many seconds of September."""
    log = f"w-{len(ledger.audit.entries())}-{at}-{euros}-{tenant}"
    used, time = Usage.of(hit=euros), START + at * SECOND
    event = make_event(hash(log) % 10**9, time=time, tenant=tenant, usage=used)
    assert record(ledger, log, 1, [event]).counted


def deliveries(ledger: Ledger) -> list[tuple[str, dict[str, object]]]:
    """Return types and data of the webhooks that are due."""
    found = [msgspec.json.decode(one.payload) for one in ledger.deliveries.take(seconds=0)]
    return [(one["type"], one["data"]) for one in found]


def reached(ledger: Ledger) -> Sequence[tuple[str, int]]:
    return [(one.tenant, one.threshold) for one in ledger.budgets.watch()]


def test_each_threshold_is_noted_once_with_its_webhook(ledger: Ledger) -> None:
    ledger.budgets.set("acme", Budget(amount="10"))
    spend(ledger, 7, at=DAY)
    before = reached(ledger)
    spend(ledger, 1, at=10 * DAY)
    first = [reached(ledger) for _ in range(2)]
    spend(ledger, 5, at=10 * DAY)
    second = [reached(ledger) for _ in range(2)]

    assert before == []
    assert first == [[("acme", 80)], []]
    assert second == [[("acme", 100)], []]
    about = {"month": "2026-09", "amount": "10", "currency": "EUR"}
    assert deliveries(ledger) == [
        ("budget.threshold_reached", about | {"threshold": 80, "spent": "8.000000000"}),
        ("budget.reached", about | {"threshold": 100, "spent": "13.000000000"}),
    ]


def test_a_watch_that_was_killed_tells_nothing_twice(
    ledger: Ledger, database: str, clock: Clock
) -> None:
    """What was noted was noted with its webhook: another process sends that, and no second one."""
    ledger.budgets.set("acme", Budget(amount="10"))
    spend(ledger, 9, at=DAY)
    ledger.budgets.watch()

    with Ledger.create(database, clock=clock) as other:
        assert reached(other) == []
        assert [kind for kind, _ in deliveries(other)] == ["budget.threshold_reached"]


@SQLITE
def test_a_watch_that_dies_before_the_webhook_is_noted_notes_both_next_time(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.budgets.set("acme", Budget(amount="10", thresholds=(100,), refuse=True))
    spend(ledger, 10, at=10 * DAY)

    def die(*arguments: object, **named: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(budgets, "add_delivery", die)
        with pytest.raises(KeyboardInterrupt):
            ledger.budgets.watch()
    between = (principals(ledger)["acme"].exhausted_until, deliveries(ledger))

    assert between == (None, [])
    assert [reached(ledger) for _ in range(2)] == [[("acme", 100)], []]
    assert [kind for kind, _ in deliveries(ledger)] == ["budget.reached"]


@SQLITE
def test_a_month_begins_anew(ledger: Ledger, clock: Clock) -> None:
    ledger.budgets.set("acme", Budget(amount="10", thresholds=(100,), refuse=True))
    spend(ledger, 10, at=DAY)
    found = [reached(ledger)]
    ends = principals(ledger)["acme"].exhausted_until
    clock.now = START + (SEPTEMBER + 60) * SECOND
    found.append(reached(ledger))
    after = principals(ledger)["acme"].exhausted_until
    spend(ledger, 10, at=SEPTEMBER + 30)
    found.append(reached(ledger))

    assert found == [[("acme", 100)], [], [("acme", 100)]]
    assert ends == START + SEPTEMBER * SECOND
    assert after is None


def test_only_who_wants_it_is_refused_and_a_higher_budget_admits_at_once(ledger: Ledger) -> None:
    ledger.budgets.set("acme", Budget(amount="10", refuse=True))
    ledger.budgets.set("beta", Budget(amount="10"))
    for tenant in ("acme", "beta"):
        spend(ledger, 11, at=DAY, tenant=tenant)
    version = ledger.principals.version()

    ledger.budgets.watch()

    changes = ledger.principals.changes(version)
    assert changes is not None
    refused = {one.tenant: one.exhausted_until for _, one in changes.principals}
    assert refused == {"acme": START + SEPTEMBER * SECOND}
    ledger.budgets.set("acme", Budget(amount="20", refuse=True))
    assert principals(ledger)["acme"].exhausted_until is None
    assert reached(ledger) == []
    assert principals(ledger)["acme"].exhausted_until is None


@SQLITE
def test_a_changed_amount_is_reached_anew_and_changed_thresholds_are_not(ledger: Ledger) -> None:
    ledger.budgets.set("acme", Budget(amount="10"))
    spend(ledger, 9, at=DAY)
    found = [reached(ledger)]
    ledger.budgets.set("acme", Budget(amount="10.0", thresholds=(50, 80)))
    found.append(reached(ledger))
    ledger.budgets.set("acme", Budget(amount="11"))
    found.append(reached(ledger))

    assert found == [[("acme", 80)], [("acme", 50)], [("acme", 80)]]


@SQLITE
def test_a_changed_currency_is_reached_anew(ledger: Ledger) -> None:
    dollar = PriceConfig(model="us", since="2026-01-01", currency="USD", hit=NANO)
    ledger.prices.publish([EURO, dollar], former=[EURO])
    spend(ledger, 9, at=DAY)

    found = []
    for currency in ("EUR", "USD", "EUR"):
        ledger.budgets.set("acme", Budget(amount="10", currency=currency))
        found.append(reached(ledger))

    assert found == [[("acme", 80)], [], [("acme", 80)]]


@SQLITE
@pytest.mark.parametrize(
    ("late", "counted"),
    [
        pytest.param(3600, [("acme", 100)], id="an hour is not late"),
        pytest.param(3601, [], id="more than an hour is"),
    ],
)
def test_events_that_come_late_are_counted_after_a_quarter_of_an_hour(
    ledger: Ledger, clock: Clock, late: int, counted: list[tuple[str, int]]
) -> None:
    ledger.budgets.set("acme", Budget(amount="10", thresholds=(100,)))
    spend(ledger, 9, at=DAY)
    reached(ledger)
    spend(ledger, 1, at=10 * DAY - late)
    at_once = reached(ledger)
    clock.advance(901)

    assert at_once == counted
    assert [*at_once, *reached(ledger)] == [("acme", 100)]


def test_a_process_that_sees_less_of_the_costs_ends_no_refusal(
    ledger: Ledger, database: str, clock: Clock
) -> None:
    ledger.budgets.set("acme", Budget(amount="10", thresholds=(50, 100), refuse=True))
    with Ledger.create(database, clock=clock) as other:
        reached(other)  # it has added up the former hours
        spend(ledger, 11, at=DAY)
        found = [reached(ledger)]
        version = ledger.principals.version()
        spend(ledger, 6, at=10 * DAY)
        found += [reached(each) for _ in range(2) for each in (other, ledger)]
        changed = ledger.principals.version()

    assert found == [[("acme", 50), ("acme", 100)], [], [], [], []]
    assert principals(ledger)["acme"].exhausted_until == START + SEPTEMBER * SECOND
    assert changed == version


@SQLITE
def test_a_mark_that_is_set_while_costs_are_added_up_stays(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, database: str, clock: Clock
) -> None:
    ledger.budgets.set("acme", Budget(amount="10", thresholds=(50, 100), refuse=True))
    spend(ledger, 6, at=DAY)
    added_up = ledger.budgets._costs_so_far

    def reaching(*arguments: object) -> object:
        found = added_up(*arguments)  # type: ignore[arg-type]  # those of the method
        with Ledger.create(database, clock=clock) as other:
            spend(other, 5, at=DAY)
            reached(other)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(ledger.budgets, "_costs_so_far", reaching)
        reached(ledger)

    assert principals(ledger)["acme"].exhausted_until == START + SEPTEMBER * SECOND


@SQLITE
def test_a_budget_that_is_removed_and_set_again_is_reached_anew_only_with_another_amount(
    ledger: Ledger,
) -> None:
    ledger.budgets.set("acme", Budget(amount="10"))
    spend(ledger, 9, at=DAY)
    found = [reached(ledger)]
    for amount in ("10.00", "11"):
        ledger.budgets.set("acme", None)
        ledger.budgets.set("acme", Budget(amount=amount))
        found.append(reached(ledger))

    assert found == [[("acme", 80)], [], [("acme", 80)]]


@SQLITE
def test_the_status_adds_the_former_hours_up_once_in_a_quarter_of_an_hour(
    ledger: Ledger, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.budgets.set("acme", Budget(amount="10"))
    spend(ledger, 4, at=DAY)
    starts: list[int] = []

    def record_start(*arguments: Any, since: int, **named: Any) -> object:
        starts.append(since)
        return usage.priced_usage(*arguments, since=since, **named)

    monkeypatch.setattr(budgets, "priced_usage", record_start)
    spent = []
    for number in range(3):
        status = ledger.budgets.status("acme")
        assert status is not None
        spent.append(status.spent)
        spend(ledger, 1, at=10 * DAY + number)
    before = starts.count(START)
    clock.advance(901)
    ledger.budgets.status("acme")

    assert spent == ["4.000000000", "5.000000000", "6.000000000"]
    assert (before, starts.count(START)) == (1, 2)


@SQLITE
def test_budgets_without_a_published_price_are_told_of_once(
    database: str, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    with Ledger.create(database, clock=clock) as ledger:
        ledger.accounts.create_tenant("acme")
        reached(ledger)
        ledger.budgets.set("acme", Budget(amount="10"), prices=[EURO])
        for _ in range(3):
            reached(ledger)

    assert [one.message.partition(",")[0] for one in caplog.records] == ["no price is published"]


@SQLITE
def test_the_status_is_that_of_this_month(ledger: Ledger, clock: Clock) -> None:
    ledger.budgets.set("acme", Budget(amount="10.50"))
    spend(ledger, 4, at=9 * DAY)

    status = ledger.budgets.status("acme")

    assert status is not None
    assert (status.month, status.spent, status.remaining, status.currency) == (
        "2026-09",
        "4.000000000",
        "6.500000000",
        "EUR",
    )
    spend(ledger, 7, at=9 * DAY + 1)
    clock.advance(901)
    over = ledger.budgets.status("acme")
    assert over is not None
    assert over.remaining == "0.000000000"
    assert ledger.budgets.status("beta") is None
    clock.now = START + (SEPTEMBER + 60) * SECOND
    later = ledger.budgets.status("acme")
    assert later is not None
    assert (later.month, later.spent) == ("2026-10", "0.000000000")


@SQLITE
def test_the_status_needs_no_published_price(database: str, clock: Clock) -> None:
    with Ledger.create(database, clock=clock) as ledger:
        ledger.accounts.create_tenant("acme")
        ledger.budgets.set("acme", Budget(amount="10"), prices=[EURO])
        spend(ledger, 4, at=9 * DAY)

        status = ledger.budgets.status("acme", [EURO])

    assert status is not None
    assert status.spent == "4.000000000"


@SQLITE
def test_costs_in_another_currency_do_not_count(ledger: Ledger) -> None:
    dollar = PriceConfig(model="us", since="2026-01-01", currency="USD", hit=NANO)
    ledger.prices.publish([EURO, dollar], former=[EURO])
    with pytest.raises(InvalidRequest, match="EUR, USD"):
        ledger.budgets.set("acme", Budget(amount="10"))
    ledger.budgets.set("acme", Budget(amount="10", currency="USD"))
    spend(ledger, 20, at=DAY)

    assert reached(ledger) == []


@SQLITE
def test_what_is_no_budget_is_refused_and_changes_nothing(ledger: Ledger) -> None:
    amounts = ("0", "0.0", "-1", "1e3", "ten", "1.0000000001", "1" * 10, "\u0661\u0660", "")
    thresholds = ((0,), (1001,), tuple(range(1, 12)))
    wrong = [Budget(amount=amount) for amount in amounts]
    wrong += [Budget(amount="10", thresholds=each) for each in thresholds]

    for budget in (*wrong, Budget(amount="10", currency="XXX")):
        with pytest.raises(InvalidRequest):
            ledger.budgets.set("acme", budget)

    assert ledger.accounts.tenant("acme").budget is None


def test_a_change_is_audited_and_a_removed_budget_refuses_nothing(ledger: Ledger) -> None:
    ledger.budgets.set("acme", Budget(amount="10", refuse=True), actor="admin")
    spend(ledger, 11, at=DAY)
    ledger.budgets.watch()

    ledger.budgets.set("acme", None, actor="admin")

    assert principals(ledger)["acme"].exhausted_until is None
    assert ledger.budgets.watch() == []
    removed, made = ledger.audit.entries(limit=2)
    assert (made.action, made.subject, made.detail["amount"]) == ("tenant.budget", "acme", "10")
    assert removed.detail == {}
    with pytest.raises(NotFound):
        ledger.budgets.set("nobody", None)


@SQLITE
def test_a_budget_that_changes_while_costs_are_added_up_is_compared_next_time(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.budgets.set("acme", Budget(amount="10", refuse=True))
    spend(ledger, 11, at=DAY)
    added_up = ledger.budgets._costs_so_far

    def changing(*arguments: object) -> object:
        found = added_up(*arguments)  # type: ignore[arg-type]  # those of the method
        ledger.budgets.set("acme", Budget(amount="20", refuse=True))
        return found

    with monkeypatch.context() as patched:
        patched.setattr(ledger.budgets, "_costs_so_far", changing)
        found = reached(ledger)

    assert found == []
    assert principals(ledger)["acme"].exhausted_until is None


def test_a_tenant_of_the_version_before_has_no_budget(database: str, ledger: Ledger) -> None:
    engine = sqlalchemy.create_engine(database)
    with engine.begin() as connection:
        statement = "INSERT INTO tenants (id, name, rules, created) VALUES ('old', 'old', '[]', 1)"
        connection.execute(sqlalchemy.text(statement))
    engine.dispose()

    assert ledger.accounts.tenant("old").budget is None
    assert ledger.budgets.watch() == []
