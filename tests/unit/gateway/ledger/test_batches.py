"""The ledger says who runs a batch, and keeps files and batches of tenants apart."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from sluicegate.gateway.errors import Conflict, NotFound, RateLimited
from sluicegate.gateway.ledger.batch_types import BatchPart, BatchState, RequestBatch, StoredFile
from sluicegate.gateway.ledger.batches import LeaseLost, in_status
from sluicegate.gateway.ledger.ledger import Ledger
from tests.support.ledgers import Clock, ledger_url

SECOND = 1_000_000_000


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(database: str, clock: Clock) -> Iterator[Ledger]:
    with Ledger.create(database, clock=clock) as opened:
        yield opened


def add_file(
    ledger: Ledger, name: str, *, tenant: str = "acme", most: int = 9, most_bytes: int = 99
) -> str:
    now = ledger.batches.now()
    file = StoredFile(
        id=f"file-{name}",
        tenant=tenant,
        purpose="batch",
        filename="x",
        size=0,
        created=now,
        expires=now + 1000,
    )
    ledger.files.begin(file, most=most, most_bytes=most_bytes)
    ledger.files.finish(file.id, size=3, expires=file.expires)
    return file.id


def add_batch(
    ledger: Ledger, name: str, *, tenant: str = "acme", most: int = 9, most_bytes: int = 99
) -> RequestBatch:
    now = ledger.batches.now()
    batch = RequestBatch(
        id=f"batch_{name}",
        tenant=tenant,
        key="key_1",
        endpoint="/v1/classify",
        input_file=add_file(ledger, name, tenant=tenant),
        created=now,
        expires=now + 86_400,
        part_lines=500,
    )
    ledger.batches.create(batch, most_open=most, most_bytes=most_bytes)
    return batch


def with_part(batch: RequestBatch) -> RequestBatch:
    return msgspec.structs.replace(
        batch, parts=(*batch.parts, BatchPart(token="t", completed=2, failed=1))
    )


def claimed(ledger: Ledger, holder: str, *running: RequestBatch, most: int = 4) -> str | None:
    batch = ledger.batches.claim(holder, seconds=30.0, running=running, most=most)
    return None if batch is None else batch.id


def test_a_batch_is_run_by_one_holder_at_a_time(ledger: Ledger) -> None:
    batch = add_batch(ledger, "a")

    assert claimed(ledger, "one") == batch.id
    assert claimed(ledger, "one", batch) is None
    assert claimed(ledger, "two") is None
    assert claimed(ledger, "one") == batch.id  # it was started again
    with pytest.raises(LeaseLost):
        ledger.batches.change(batch.id, "two", with_part)
    changed = ledger.batches.change(batch.id, "one", with_part)
    assert (changed.completed, changed.failed) == (2, 1)


def test_a_holder_that_does_not_renew_its_lease_loses_the_batch(tmp_path: Path) -> None:
    """In SQLite, where the clock is the program's; PostgreSQL has one of its own."""
    clock = Clock()
    with Ledger.create(ledger_url(tmp_path), clock=clock) as ledger:
        batch = add_batch(ledger, "a")
        claimed(ledger, "one")
        clock.advance(20.0)
        assert ledger.batches.renew("one", [batch.id], seconds=30.0) == {
            batch.id: BatchState.VALIDATING
        }
        clock.advance(20.0)
        assert claimed(ledger, "two") is None
        clock.advance(11.0)

        assert claimed(ledger, "two") == batch.id

        assert ledger.batches.renew("one", [batch.id], seconds=30.0) == {}
        with pytest.raises(LeaseLost):
            ledger.batches.end(batch.id, "one", with_part)


def test_the_tenant_with_the_fewest_batches_running_is_next(ledger: Ledger, clock: Clock) -> None:
    first, _ = add_batch(ledger, "a"), add_batch(ledger, "b")
    clock.advance(5.0)
    other = add_batch(ledger, "c", tenant="other")

    assert claimed(ledger, "one") == first.id
    assert claimed(ledger, "one", first) == other.id


def test_a_tenant_without_a_batch_under_way_waits_for_no_other(
    ledger: Ledger, clock: Clock
) -> None:
    first, second, _ = (add_batch(ledger, name) for name in "abc")
    clock.advance(5.0)
    other = add_batch(ledger, "d", tenant="other")
    claimed(ledger, "one", second)

    assert claimed(ledger, "one", first, second, most=2) == other.id
    assert claimed(ledger, "one", first, second, other, most=2) is None


def test_a_batch_that_has_ended_is_claimed_until_it_is_clean(ledger: Ledger) -> None:
    batch = add_batch(ledger, "a")
    claimed(ledger, "one")
    file = StoredFile(
        id="file-out",
        tenant="acme",
        purpose="batch_output",
        filename="o",
        size=9,
        created=1,
        expires=2,
    )

    ledger.batches.end(
        batch.id, "one", lambda b: in_status(b, BatchState.COMPLETED, 7), files=[file]
    )

    assert ledger.files.get("acme", "file-out") == file
    assert ledger.batches.get("acme", batch.id).moments == {"completed": 7}
    (delivery,) = ledger.deliveries.take(seconds=60.0)
    assert msgspec.json.decode(delivery.payload)["type"] == "batch.completed"
    assert claimed(ledger, "one") == batch.id
    ledger.batches.change(batch.id, "one", lambda b: msgspec.structs.replace(b, is_clean=True))
    assert claimed(ledger, "one") is None


def test_batches_that_ended_long_ago_are_removed(ledger: Ledger, clock: Clock) -> None:
    old, still_open = add_batch(ledger, "a"), add_batch(ledger, "b")
    claimed(ledger, "one")
    ledger.batches.change(old.id, "one", lambda b: msgspec.structs.replace(b, is_clean=True))
    clock.advance(1000.0)

    ledger.batches.remove_ended(keep=2000)
    assert len(ledger.batches.page("acme", limit=9)) == 2
    ledger.batches.remove_ended(keep=500)

    assert [batch.id for batch in ledger.batches.page("acme", limit=9)] == [still_open.id]


def test_a_tenant_sees_its_own_files_and_batches_only(ledger: Ledger) -> None:
    batch = add_batch(ledger, "a")

    for call in (
        lambda: ledger.batches.get("other", batch.id),
        lambda: ledger.batches.cancel("other", batch.id),
        lambda: ledger.batches.page("other", limit=9, after=batch.id),
        lambda: ledger.files.get("other", batch.input_file),
        lambda: ledger.files.hide("other", batch.input_file),
    ):
        with pytest.raises(NotFound):
            call()
    assert ledger.batches.page("other", limit=9) == []
    assert ledger.files.page("other", limit=9) == []


def test_pages_follow_on_each_other_also_within_one_moment(ledger: Ledger) -> None:
    added = [add_batch(ledger, name).id for name in "abcde"]

    found: list[str] = []
    for _ in range(3):
        page = ledger.batches.page("acme", limit=2, after=found[-1] if found else None)
        found += [batch.id for batch in page]
    files: list[str] = []
    for _ in range(3):
        part = ledger.files.page(
            "acme", limit=2, after=files[-1] if files else None, is_ascending=True
        )
        files += [file.id for file in part]

    assert found == sorted(added, reverse=True)
    assert files == [f"file-{name}" for name in "abcde"]


def test_open_batches_and_files_of_a_tenant_are_bounded(ledger: Ledger) -> None:
    add_batch(ledger, "a", most=1)

    with pytest.raises(RateLimited, match="1 batches are open"):
        add_batch(ledger, "b", most=1)
    with pytest.raises(RateLimited, match="2 files"):
        add_file(ledger, "c", most=2)
    add_batch(ledger, "d", tenant="other", most=1)


def test_bytes_of_a_tenants_files_are_bounded(ledger: Ledger) -> None:
    add_batch(ledger, "a")

    with pytest.raises(RateLimited, match="2 bytes"):
        add_file(ledger, "b", most_bytes=2)
    with pytest.raises(RateLimited, match="5 bytes"):
        add_batch(ledger, "c", most_bytes=5)
    add_batch(ledger, "d", tenant="other", most_bytes=3)


def test_a_file_that_an_open_batch_reads_is_kept(ledger: Ledger, clock: Clock) -> None:
    batch = add_batch(ledger, "a")
    add_file(ledger, "b")
    clock.advance(2000.0)

    assert ledger.files.expired() == ["file-b"]
    with pytest.raises(Conflict, match=batch.id):
        ledger.files.hide("acme", batch.input_file)


def test_an_upload_that_did_not_end_is_seen_by_nobody_and_removed(
    ledger: Ledger, clock: Clock
) -> None:
    file = StoredFile(
        id="file-u",
        tenant="acme",
        purpose="batch",
        filename="x",
        size=0,
        created=ledger.batches.now(),
        expires=ledger.batches.now() + 10**6,
    )
    ledger.files.begin(file, most=9, most_bytes=99)

    with pytest.raises(NotFound):
        ledger.files.get("acme", file.id)
    assert ledger.files.expired() == []
    clock.advance(4000.0)
    assert ledger.files.expired() == [file.id]
