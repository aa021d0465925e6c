"""What a document would change, as the console says it."""

import msgspec

from sluicegate.gateway.config.difference import FieldChange
from sluicegate.gateway.config.document import Document
from sluicegate.gateway.console.field_changes import MOST_FIELDS, FieldLine, described, lines_of
from sluicegate.gateway.ledger.types import TenantCount
from sluicegate.gateway.operations.document_difference import DocumentDifference, ModelNameChanges


def document(**models: object) -> Document:
    return msgspec.convert({"models": models}, Document)


def test_fields_are_shown_as_they_were_and_become() -> None:
    found = lines_of(document(m={"cache_ttl": 1}), document(m={"cache_ttl": 2}, n={}))

    assert found.lines == [
        FieldLine(path="models.m.cache_ttl", before="1.0", after="2.0"),
        FieldLine(path="models.n", before=None, after="{}"),
    ]


def test_no_more_fields_are_shown_than_can_be_read() -> None:
    many: dict[str, object] = {f"m{number}": {} for number in range(MOST_FIELDS + 5)}

    found = lines_of(document(), document(**many))

    assert (len(found.lines), found.omitted) == (MOST_FIELDS, 5)


def test_those_who_are_affected_are_counted_and_named() -> None:
    found = described(
        DocumentDifference(
            changes=[FieldChange(path="limits.key", after=[])],
            omitted=0,
            models=ModelNameChanges(added=["n"], removed=[], changed=["m"]),
            limits=["limits.key"],
            prices=[],
            tenants_by_limits=TenantCount(count=3, first=["acme", "beta"]),
            tenants_by_prices=None,
        )
    )

    prices = "Tenants with usage this month whose prices change"
    assert found.notes == [
        "Models added: n",
        "Models changed: m",
        "Limits that change: limits.key",
        "Tenants whose limits change: 3 (acme, beta, and 1 more)",
        f"{prices}: unknown, because the ledger cannot be reached",
    ]
