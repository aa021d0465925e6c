"""Pages of tenants: searched, counted, with the number of their valid keys."""

from collections.abc import Iterator
from datetime import timedelta

import pytest

from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.ledger.store import to_datetime
from sluicegate.gateway.ledger.tenant_pages import TenantPage
from tests.support.ledgers import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(database: str, clock: Clock) -> Iterator[Ledger]:
    with Ledger.create(database, clock=clock) as opened:
        for name in ("beta", "acme", "gamma_1"):
            opened.accounts.create_tenant(name, name=f"{name.title()} Ltd.")
        yield opened


def ids(page: TenantPage) -> list[str]:
    return [line.tenant.id for line in page.lines]


def test_a_page_has_tenants_by_id_and_the_number_of_all(ledger: Ledger) -> None:
    page = ledger.tenant_pages.page(limit=2)
    rest = ledger.tenant_pages.page(limit=2, offset=2)

    assert (ids(page), page.total) == (["acme", "beta"], 3)
    assert (ids(rest), rest.total) == (["gamma_1"], 3)


SEARCHES = {
    "ACM": ["acme"],
    "ltd": ["acme", "beta", "gamma_1"],
    "_": ["gamma_1"],
    "%": [],
}


def test_a_search_finds_parts_of_ids_and_names(ledger: Ledger) -> None:
    pages = {text: ledger.tenant_pages.page(search=text) for text in SEARCHES}

    assert {text: ids(page) for text, page in pages.items()} == SEARCHES
    assert [page.total for page in pages.values()] == [1, 3, 1, 0]


def test_keys_that_ended_are_not_counted(ledger: Ledger, clock: Clock) -> None:
    soon = to_datetime(clock.now) + timedelta(seconds=5)
    ledger.accounts.create_key("acme", key_hash="h1")
    ledger.accounts.create_key("acme", key_hash="h2", expires=soon)
    revoked = ledger.accounts.create_key("acme", key_hash="h3")
    ledger.accounts.revoke(revoked.id)

    before = ledger.tenant_pages.page(search="acme").lines[0].keys
    clock.advance(6)
    after = ledger.tenant_pages.page(search="acme").lines[0].keys

    assert (before, after) == (2, 1)
