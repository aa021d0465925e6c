"""The operators' listener: dead letters are counted after all, once, or discarded."""

import httpx
import msgspec
import pytest

from sluicegate.gateway.events.block import pack
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.ledger.types import EventBlock
from tests.support.admin import refused
from tests.support.events import make_event
from tests.support.ledgers import sums

pytestmark = pytest.mark.anyio
_encode = msgspec.msgpack.encode


async def test_dead_letters_are_shown_replayed_and_discarded(
    admin: httpx.AsyncClient, ledger: Ledger
) -> None:
    records = [_encode(make_event(1)), b"\xc1 no msgpack"]
    ledger.recorder.record([EventBlock(log_id="log-1", first=1, last=2, wrong=records)])

    page = (await admin.get("/admin/dead-letters")).json()
    unreadable, readable = page["entries"]
    shown = (await admin.get(f"/admin/dead-letters/{readable['number']}")).json()
    raw = (await admin.get(f"/admin/dead-letters/{unreadable['number']}")).json()
    replayed = await admin.post(f"/admin/dead-letters/{readable['number']}/replay")
    again = await admin.post(f"/admin/dead-letters/{readable['number']}/replay")
    stuck = await admin.post(f"/admin/dead-letters/{unreadable['number']}/replay")
    gone = await admin.delete(f"/admin/dead-letters/{unreadable['number']}")

    assert page["count"] == 2
    assert (shown["events"], '"acme"' in shown["content"]) == (1, True)
    assert (raw["events"], raw["content"]) == (None, "c1206e6f 206d7367 7061636b")
    assert replayed.json() == {"number": readable["number"], "counted": 1}
    refused(again, 404, "not_found")
    assert "after an upgrade" in refused(stuck, 400, "invalid_request")["detail"]
    assert gone.json()["reason"] == "not an event"
    assert (sums(ledger).events, sums(ledger).dead_letters) == (1, 0)
    audited = (await admin.get("/admin/audit?kind=dead_letter&operator=admin")).json()["entries"]
    assert [entry["action"] for entry in audited] == ["dead_letter.discard", "dead_letter.replay"]


async def test_an_entry_that_is_a_block_after_all_is_recorded_by_its_numbers(
    admin: httpx.AsyncClient, ledger: Ledger
) -> None:
    block = pack("log-1", 1, [_encode(make_event(1)), _encode(make_event(2))])
    names, values = block.fields()[::2], block.fields()[1::2]
    fields = {
        str(name).encode(): value if isinstance(value, bytes) else str(value).encode()
        for name, value in zip(names, values, strict=True)
    }
    ledger.recorder.add_dead_letter("", "the entry's fields are wrong", _encode(fields))

    replayed = (await admin.post("/admin/dead-letters/1/replay")).json()

    assert replayed["counted"] == 2
    assert ledger.recorder.high_water(["log-1"]) == {"log-1": 2}
    assert sums(ledger).dead_letters == 0


async def test_an_operator_gives_a_key_another_text(
    admin: httpx.AsyncClient, ledger: Ledger
) -> None:
    await admin.post("/admin/tenants", json={"id": "acme"})
    created = (await admin.post("/admin/keys", json={"tenant": "acme"})).json()

    rotated = await admin.post(f"/admin/keys/{created['id']}/rotate", json={})
    too_long = await admin.post(
        f"/admin/keys/{created['id']}/rotate", json={"former_valid_for": 1e9}
    )

    assert rotated.json()["id"] == created["id"]
    assert rotated.json()["key"] not in (created["key"], "")
    assert rotated.json()["former_expires"]
    refused(too_long, 400, "invalid_request")
    assert ledger.audit.entries(limit=1)[0].action == "key.rotate"
