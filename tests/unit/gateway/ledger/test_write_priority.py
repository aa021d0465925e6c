"""Short changes of a SQLite ledger go before billing's long transactions."""

import fcntl
import threading
import time
from pathlib import Path

from sluicegate.gateway.ledger.write_priority import FileWritePriority
from testing.waiting import wait_until
from tests.support.events import START
from tests.support.ledgers import open_ledger


def test_who_writes_in_bulk_waits_while_somebody_is_ahead(tmp_path: Path) -> None:
    one, other = (FileWritePriority(tmp_path / "lock") for _ in range(2))
    done: list[str] = []
    with one.prioritized(), other.prioritized():
        bulk = threading.Thread(target=_write_in_bulk, args=(other, done))
        bulk.start()
        done.append("change")
    bulk.join()

    assert done == ["change", "bulk"]


def test_nobody_holds_up_bulk_for_ever(tmp_path: Path) -> None:
    priority = FileWritePriority(tmp_path / "lock")

    with priority.prioritized():
        priority.give_way()  # returns after a second


def test_order_is_given_up_where_the_file_cannot_be_opened(tmp_path: Path) -> None:
    priority = FileWritePriority(tmp_path / "a folder that is not there" / "lock")

    with priority.prioritized():
        priority.give_way()


def test_a_file_of_another_user_may_be_locked(tmp_path: Path) -> None:
    priority = FileWritePriority(tmp_path / "lock")
    with priority.prioritized():
        pass

    (made,) = tmp_path.iterdir()
    assert made.stat().st_mode & 0o004


def test_a_process_that_stopped_while_it_looked_holds_nobody_up_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)

        with FileWritePriority(path).prioritized():  # after a second
            pass


def test_a_change_gets_in_between_transactions_that_follow_at_once(tmp_path: Path) -> None:
    stop = threading.Event()
    transactions = 0

    def record() -> None:
        nonlocal transactions
        with open_ledger(tmp_path) as ledger:
            while not stop.is_set():
                ledger.recorder.record([])
                transactions += 1

    with open_ledger(tmp_path) as ledger:
        recording = threading.Thread(target=record)
        recording.start()
        wait_until(lambda: transactions > 0)

        for number in range(20):
            ledger.audit("admin", "test", str(number))
        stop.set()
        recording.join()

        assert len(ledger.audit.entries()) == 20


def test_adding_up_old_usage_lets_changes_go_first(tmp_path: Path) -> None:
    with open_ledger(tmp_path) as ledger:
        ledger.audit("admin", "test", "makes the tables")

        with FileWritePriority(tmp_path / "ledger.db-ahead").prioritized():
            began = time.monotonic()
            ledger.rollup.add_up(before=START, limit=10)
            waited = time.monotonic() - began

    assert waited >= 1.0


def _write_in_bulk(priority: FileWritePriority, done: list[str]) -> None:
    priority.give_way()
    done.append("bulk")
