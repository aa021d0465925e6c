"""Measures what billing an event costs, from the event stream to the ledger.

Real billing processes (recorders) read blocks from a real Valkey. All measured blocks arrive at
once, so that the recorders never wait for blocks.
"""

import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import click
import msgspec
import redis

from loadtests.machine import processor_seconds
from loadtests.options import rounds
from loadtests.report import Line, show
from loadtests.turns import in_turns
from sluicegate.gateway.events.block import STREAM, Block, pack
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.settings import Settings, environment, process_environment
from sluicegate.gateway.types import KeyId, RequestEvent, RequestId, TenantId, Usage
from sluicegate.gateway.workers.stream import BILLING
from testing.postgresql import PostgreSQL, programs
from testing.valkey import Valkey
from testing.waiting import wait_until

_EVENTS: Final = 1000  # in a block
_LOGS: Final = 4  # of as many gateway workers
_MODELS: Final = 4
_WARM: Final = 16  # blocks before the measured ones
_LONGEST: Final = 600.0


class _Run(NamedTuple):
    """The events that were billed in a second, and the recorders' microseconds for an event."""

    rate: float
    cost: float


@click.command()
@click.option("--tenants", default=4000)
@click.option("--blocks", default=100, help=f"Blocks of {_EVENTS:,} events in a run.")
@rounds(3)
def measure(*, tenants: int, blocks: int, rounds: int) -> None:
    """Measure billing with SQLite and PostgreSQL, with one and two recorders."""
    made = _blocks(_WARM + blocks, tenants)
    with ExitStack() as stack:
        ledgers: dict[str, Callable[[Path], str]] = {"SQLite": _sqlite}
        note = "The times of Valkey and of PostgreSQL's server are not counted."
        if (folder := programs()) is None:
            note = "PostgreSQL is not installed (make install-system)."
        else:
            server = stack.enter_context(PostgreSQL(folder))
            ledgers["PostgreSQL"] = lambda _: server.database()

        def variant(ledger: Callable[[Path], str], recorders: int) -> Callable[[], _Run]:
            return lambda: _bill(made, ledger, recorders)

        variants = {
            (name, recorders): variant(ledger, recorders)
            for name, ledger in ledgers.items()
            for recorders in (1, 2)
        }
        runs = in_turns(variants, rounds)
    lines: list[Line] = [
        {
            "ledger": name,
            "recorders": recorders,
            "events a second": median(run.rate for run in each),
            "µs of recorders for an event": median(run.cost for run in each),
        }
        for (name, recorders), each in runs.items()
    ]
    show(f"Billing: {tenants:,} tenants, {blocks:,} blocks of {_EVENTS:,} events", lines, note)


def _sqlite(folder: Path) -> str:
    return f"sqlite:///{folder / 'ledger.db'}"


def _blocks(count: int, tenants: int) -> list[Block]:
    """Return blocks of the event logs in turn, with events of the present of random tenants."""
    chance = random.Random(1)
    return [
        pack(
            f"w{number % _LOGS}-1",
            number // _LOGS * _EVENTS + 1,
            [_event(f"{number}-{i}", chance, tenants) for i in range(_EVENTS)],
        )
        for number in range(count)
    ]


def _event(name: str, chance: random.Random, tenants: int) -> bytes:
    tenant = chance.randrange(tenants)
    event = RequestEvent(
        id=RequestId(f"req_{name}"),
        time=time.time_ns(),
        tenant=TenantId(f"tenant-{tenant:05}"),
        key=KeyId(f"key_{tenant:05}"),
        model=f"model-{chance.randrange(_MODELS)}",
        task="classify",
        status=200,
        usage=Usage(items=1, hit=0, collapsed=0, computed=1, failed=0, rows=1, tokens=12),
        duration=0.001,
        region="eu",
        revision="9f2c51d0a7be",
    )
    return msgspec.msgpack.encode(event)


def _bill(blocks: list[Block], ledger: Callable[[Path], str], recorders: int) -> _Run:
    """Bill all blocks into a new ledger, and measure all blocks but the first ones."""
    with tempfile.TemporaryDirectory() as name, Valkey() as valkey, ExitStack() as stack:
        folder = Path(name)
        url = ledger(folder)
        Ledger.create(url).close()
        client = stack.enter_context(redis.Redis.from_url(valkey.url))
        pids = []
        for number in range(recorders):
            settings = Settings(
                data_dir=folder / str(number),
                worker=str(number),
                state_url=valkey.url,
                ledger_url=url,
            )
            pids.append(stack.enter_context(_recorder(settings)))
        wait_until(
            lambda: _consumers(client) == recorders, within=_LONGEST, what="the recorders read"
        )
        _send(client, blocks[:_WARM])
        begun, used = time.perf_counter(), processor_seconds(*pids)
        _send(client, blocks[_WARM:])
        spent, events = time.perf_counter() - begun, _EVENTS * len(blocks[_WARM:])
        return _Run(rate=events / spent, cost=1e6 * (processor_seconds(*pids) - used) / events)


@contextmanager
def _recorder(settings: Settings) -> Iterator[int]:
    """Run a billing process, and yield its id."""
    settings.data_dir.mkdir()
    command = [sys.executable, "-m", "sluicegate.gateway", "run-billing"]
    child = subprocess.Popen(
        command,
        env=dict(process_environment()) | environment(settings),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield child.pid
    finally:
        child.terminate()
        child.wait(60.0)


def _consumers(client: redis.Redis) -> int:
    """Return how many recorders have read from the stream."""
    if not client.exists(STREAM):
        return 0
    return len(client.xinfo_consumers(STREAM, BILLING))


def _send(client: redis.Redis, blocks: list[Block]) -> None:
    """Append blocks in one transaction, and wait until the recorders have acknowledged them."""
    together = client.pipeline(transaction=True)
    for block in blocks:
        names, values = block.fields()[::2], block.fields()[1::2]
        together.xadd(STREAM, dict(zip(names, values, strict=True)))
    together.execute()
    wait_until(
        lambda: _is_billed(client), within=_LONGEST, every=0.02, what="the blocks are billed"
    )


def _is_billed(client: redis.Redis) -> bool:
    (group,) = client.xinfo_groups(STREAM)
    return not group["pending"] and not group["lag"]
