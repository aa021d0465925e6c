"""What backends cost follows the documents of the time."""

import msgspec

from sluicegate.gateway.config.document import Document
from sluicegate.gateway.console.backend_costs import (
    DatedDocument,
    backend_costs,
    hourly_rate,
    unpriced_pools,
)

EURO = 1_000_000_000
HOUR = 3_600.0


def document(cost: float, *, backends: int = 1) -> Document:
    listed = [{"id": f"b{index}", "url": "http://10.0.0.1:1"} for index in range(backends)]
    pool = {"cost_per_hour": cost, "backends": listed}
    return msgspec.convert({"regions": [{"name": "eu", "pools": [pool]}]}, Document)


def test_an_hour_costs_what_all_backends_cost() -> None:
    assert hourly_rate(document(1.5, backends=4), {}) == 6 * EURO


def test_a_name_counts_as_the_backends_behind_it() -> None:
    pool = {"cost_per_hour": 2.0, "backends": [{"id": "eu", "dns": "backends:8100"}]}
    named = msgspec.convert({"regions": [{"name": "eu", "pools": [pool]}]}, Document)

    assert hourly_rate(named, {"eu": 3}) == 6 * EURO
    assert hourly_rate(named, {}) == 0


def test_each_hour_costs_by_the_document_of_its_time() -> None:
    documents = [
        DatedDocument(since=HOUR, document=document(1.0)),
        DatedDocument(since=2.5 * HOUR, document=document(3.0)),
    ]

    costs = backend_costs(documents, [0, HOUR, 2 * HOUR, 3 * HOUR, 3.5 * HOUR], {})

    assert costs == [0, EURO, 2 * EURO, 1.5 * EURO]


def test_pools_without_a_cost_are_named() -> None:
    assert unpriced_pools(document(0.0)) == ["eu/default"]
    assert unpriced_pools(document(0.1)) == []
