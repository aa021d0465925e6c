"""Turns the tables of the model servers into figures of the comparison."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from backends.protocol import Task
from loadtests.peers.comparison import OURS, Figure, Kind, LeftOut, Work
from loadtests.peers.measure import OWN, measure
from loadtests.peers.servers import PEERS
from loadtests.peers.table import PeerRow


def measure_misses(
    *,
    peers: tuple[str, ...],
    tasks: tuple[Task, ...],
    precisions: tuple[str, ...],
    connections: int,
    count: int,
    rounds: int,
    folder: Path,
    source: str,
) -> tuple[list[Figure], list[LeftOut]]:
    """Measure the peers at each task in each precision, beside Sluicegate's two servers."""
    figures: list[Figure] = []
    left_out: list[LeftOut] = []
    tables = measure(
        peers=peers,
        tasks=tasks,
        precisions=precisions,
        connections=connections,
        count=count,
        rounds=rounds,
        folder=folder,
    )
    for task, precision, table in tables:
        work = Work(kind=Kind.MISSES, task=task, precision=precision)
        figures += figures_of(work, table, source)
        left_out += [
            LeftOut(work=work, peer=peer_of(row.what), what=row.what, reason=row.failure)
            for row in table
            if row.failure
        ]
    return figures, left_out


def figures_of(work: Work, table: Sequence[PeerRow], source: str) -> Iterable[Figure]:
    """Yield the figures of a table, whose first row is what all are compared with."""
    first = table[0]
    for number, row in enumerate(table):
        if row.failure:
            continue
        yield Figure(
            work=work,
            peer=OURS if number < OWN else peer_of(row.what),
            what=row.what,
            rate=row.rate,
            of_ours=round(row.rate / first.rate, 4),
            beside=first.what,
            source=source,
            p50=row.p50,
            p95=row.p95,
            busy=row.busy,
        )


def peer_of(what: str) -> str:
    """Return the name of the peer of a table's row."""
    label = what.partition(": ")[0]
    return next(peer.name for peer in PEERS.values() if peer.label == label)
