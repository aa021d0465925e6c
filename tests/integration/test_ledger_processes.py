"""Several processes use one SQLite ledger at once, from its very first moment."""

import subprocess
import sys
from pathlib import Path

from sluicegate.gateway.ledger.ledger import Ledger
from tests.support.ledgers import ledger_url, open_ledger, principals, sums

# Waits for the others, then writes events, accounts and audit entries as fast as it can.
WRITER = """
import sys
from sluicegate.gateway.ledger.ledger import Ledger
from tests.support.events import make_event
from tests.support.ledgers import principals, record

url, name = sys.argv[1:]
print("here", flush=True)
sys.stdin.readline()
with Ledger.create(url) as ledger:
    for block in range(10):
        numbers = range(block * 50, block * 50 + 50)
        record(ledger, "w-1", block * 50 + 50, [make_event(n) for n in numbers])
        ledger.accounts.create_tenant(f"tenant-{name}-{block}")
        ledger.audit("test", "turn", name)
        principals(ledger)
"""


def test_processes_that_start_at_once_write_side_by_side(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", WRITER, ledger_url(tmp_path)]
    writers = [
        subprocess.Popen(
            [*command, str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=root,
        )
        for number in range(4)
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "here\n"

    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    ends = [writer.communicate(timeout=60) for writer in writers]

    assert [writer.returncode for writer in writers] == [0, 0, 0, 0], ends
    with open_ledger(tmp_path) as ledger:
        # Each process wrote the same records of one log: each event is there once.
        assert sums(ledger).events == 500
        assert len(ledger.accounts.tenants()) == 40
        assert ledger.principals.version().number == 40
        assert ledger.recorder.high_water(["w-1"]) == {"w-1": 500}


def test_a_ledger_is_found_again_as_it_was_left(tmp_path: Path) -> None:
    with open_ledger(tmp_path) as ledger:
        ledger.accounts.create_tenant("acme")
        ledger.accounts.create_key("acme", key_hash="h1")

    with Ledger.create(ledger_url(tmp_path)) as again:
        assert set(principals(again)) == {"h1"}
