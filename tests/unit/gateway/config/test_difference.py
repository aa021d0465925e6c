"""What differs between two documents, field by field."""

from typing import Any

import msgspec
import pytest

from sluicegate.gateway.config.difference import find_changes
from sluicegate.gateway.config.document import Document
from sluicegate.gateway.config.load import load_sources
from sluicegate.gateway.config.sources import DocumentSource

REGIONS = "regions: [{name: eu, pools: [{backends: [{id: e1, url: 'http://a:1'}]}]}]\n"


def document(text: str) -> Document:
    return load_sources((DocumentSource(name="d.yaml", text=text),))


def changes(before: str, after: str) -> list[dict[str, Any]]:
    found = find_changes(document(before), document(after))
    return [msgspec.to_builtins(one) for one in found]


def test_equal_documents_have_no_difference() -> None:
    assert changes(REGIONS, REGIONS) == []


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (
            "models: {m: {cache_ttl: 1}}",
            "models: {m: {cache_ttl: 2}}",
            {"path": "models.m.cache_ttl", "from": 1.0, "to": 2.0},
        ),
        (
            "models: {}",
            "models: {m: {cache_ttl: 2}}",
            {"path": "models.m", "to": {"cache_ttl": 2.0}},
        ),
        ("models: {m: {}}", "models: {}", {"path": "models.m", "from": {}}),
        (
            "deadline: {default: 5}",
            "deadline: {default: 6}",
            {"path": "deadline.default", "from": 5.0, "to": 6.0},
        ),
        (
            REGIONS,
            REGIONS.replace("a:1", "b:2"),
            {
                "path": "regions[eu].pools[default].backends[e1].url",
                "from": "http://a:1",
                "to": "http://b:2",
            },
        ),
        (
            REGIONS,
            REGIONS.replace("id: e1", "id: e2"),
            {
                "path": "regions[eu].pools[default].backends[e1]",
                "from": {"id": "e1", "url": "http://a:1"},
            },
        ),
        (
            "prices: [{model: m, since: 2026-01-01, hit: 1}]",
            "prices: [{model: m, since: 2026-01-01, hit: 2}]",
            {"path": "prices[m 2026-01-01].hit", "from": 1, "to": 2},
        ),
        (
            "limits: {tenant: [{name: a, unit: items, capacity: 5, window: 1}]}",
            "limits: {tenant: [{name: a, unit: items, capacity: 9, window: 1}]}",
            {"path": "limits.tenant[a].capacity", "from": 5, "to": 9},
        ),
        (
            "cors: {origins: ['https://a.example']}",
            "cors: {origins: ['https://b.example']}",
            {"path": "cors.origins", "from": ["https://a.example"], "to": ["https://b.example"]},
        ),
    ],
)
def test_a_change_is_found_where_it_is(before: str, after: str, expected: dict[str, Any]) -> None:
    assert expected in changes(before, after)
    back = {"from": "to", "to": "from", "path": "path"}
    assert {back[name]: value for name, value in expected.items()} in changes(after, before)


def test_another_order_of_regions_is_a_change_as_the_first_is_preferred() -> None:
    one, two = "{name: eu, pools: []}", "{name: us, pools: []}"

    found = changes(f"regions: [{one}, {two}]", f"regions: [{two}, {one}]")

    assert found == [{"path": "regions", "from": ["eu", "us"], "to": ["us", "eu"]}]


def test_an_element_that_is_added_in_front_changes_nothing_of_the_others() -> None:
    one, two = "{name: eu, pools: []}", "{name: us, pools: []}"

    found = changes(f"regions: [{one}]", f"regions: [{two}, {one}]")

    assert found == [{"path": "regions[us]", "to": {"name": "us"}}]
