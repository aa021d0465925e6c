"""A PostgreSQL behind a network that drops packets is given up in time, and found again."""

import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from sluicegate.gateway.ledger.ledger import Ledger
from testing.postgresql import PostgreSQL

pytestmark = pytest.mark.system

# In a network namespace of its own: a proxy stands for the server, a firewall drops what goes to
# it, or what comes from it. Prints how long a question took before it was given up.
SCRIPT = """
import asyncio, subprocess, sys, time
import msgspec
from sluicegate.gateway.errors import DependencyUnavailable
from sluicegate.gateway.ledger.ledger import Ledger
from tests.support.delaying_proxy import DelayingProxy

SHORT = "connect_timeout=2&keepalives_idle=1&keepalives_interval=1&keepalives_count=1"

def run(*command):
    subprocess.run(command, check=True)

async def main(path, options):
    run("ip", "link", "set", "lo", "up")
    found = []
    async with DelayingProxy(path, delay=lambda: 0.0) as proxy:
        port = str(proxy.port)
        url = f"postgresql+psycopg://tests@127.0.0.1:{port}/postgres?{SHORT}"
        for end in ("--dport", "--sport"):
            with Ledger(f"{url}&tcp_user_timeout=1000&{options}", timeout=1.0) as ledger:
                await asyncio.to_thread(ledger.accounts.tenants)
                rule = ("INPUT", "-p", "tcp", end, port, "-j", "DROP")
                run("iptables", "-A", *rule)
                for _ in range(2):  # on the connection there is, and on a new one
                    began = time.monotonic()
                    try:
                        await asyncio.to_thread(ledger.accounts.tenants)
                    except DependencyUnavailable:
                        found.append(time.monotonic() - began)
                run("iptables", "-D", *rule)
                while True:
                    try:
                        await asyncio.to_thread(ledger.accounts.tenants)
                        break
                    except DependencyUnavailable:
                        continue
    print(msgspec.json.encode(found).decode())

asyncio.run(main(*sys.argv[1:]))
"""


def test_a_ledger_that_is_cut_off_is_given_up_and_found_again(postgresql: PostgreSQL) -> None:
    unshare = shutil.which("unshare")
    if unshare is None or shutil.which("iptables") is None:
        pytest.skip("network namespaces need `unshare` and `iptables`")
    if subprocess.run([unshare, "--net", "true"], check=False, capture_output=True).returncode:
        pytest.skip("network namespaces need root")
    url = postgresql.database()
    Ledger.create(url).close()

    ended = subprocess.run(
        [
            *(unshare, "--net", sys.executable, "-c", SCRIPT),
            *(postgresql.socket(), f"options{url.partition('&options')[2]}"),
        ],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )

    assert ended.returncode == 0, ended.stderr
    took = msgspec.json.decode(ended.stdout, type=list[float])
    # Without limits the kernel sends again for a quarter of an hour.
    assert len(took) == 4
    assert max(took) < 60
