"""Measures texts of which half repeat earlier ones: Sluicegate, and a peer cached or not.

No peer has a cache of its own for classifications: the fastest one is measured behind nginx with
Lua, which keeps whole answers in its memory, and alone.
"""

import tempfile
from collections.abc import Iterable
from pathlib import Path

from loadtests.peers.comparison import OURS, Figure, Kind, LeftOut, Work
from loadtests.peers.configuration import PeerConfiguration
from loadtests.peers.hits import LITELLM, NGINX
from loadtests.peers.measure import GATEWAY, Measurement, write_models
from loadtests.peers.mixed_texts import mixed_texts
from loadtests.peers.process import is_installed
from loadtests.peers.servers import PEERS, Peer
from loadtests.rivals import nginx

_WORK = Work(kind=Kind.MIXED)


def measure_mixed(
    *,
    peers: tuple[str, ...],
    misses: Iterable[Figure],
    connections: int,
    count: int,
    rounds: int,
    source: str,
) -> tuple[list[Figure], list[LeftOut]]:
    """Measure the gateway, and the peer that was the fastest at `misses`, in turns."""
    found = fastest(misses, [PEERS[name] for name in peers if name in PEERS])
    left_out = [_left_out(LITELLM, "LiteLLM", "it has no classification")] * (LITELLM in peers)
    caches = NGINX in peers and nginx.is_installed()
    if NGINX in peers and not caches:
        left_out.append(_left_out(NGINX, "nginx + Lua", "not installed: `make install-system`"))
    if found is None:
        left_out.append(_left_out("any", "a model server", "none of those asked for is installed"))
    with tempfile.TemporaryDirectory() as scratch:
        (models,) = write_models(Path(scratch), ("fp32",))
        run = Measurement(
            models, task=_WORK.task, connections=connections, count=count, texts=mixed_texts
        )
        for number in range(rounds):
            run.gateway(Path(scratch) / f"data-{number}")
            if found is not None:
                run.peer(*found)
                if caches:
                    run.peer(*found, cached=True)
    name = found[0].name if found else ""
    failed = [_left_out(name, what, reason) for what, reason in run.failures.items()]
    return _figures(run, name, source), left_out + failed


def fastest(
    misses: Iterable[Figure], peers: Iterable[Peer]
) -> tuple[Peer, PeerConfiguration] | None:
    """Return the installed peer with the best rate at classification, and its way.

    Where none has a rate it is the first one that is installed, in its first way.
    """
    installed = [peer for peer in peers if is_installed(peer)]
    ways = {
        f"{peer.label}: {way.label}": (peer, way)
        for peer in installed
        for way in (*peer.ways, *peer.tried)
    }
    work = Work(kind=Kind.MISSES)
    rates = {each.what: each.rate for each in misses if each.work == work and each.what in ways}
    if rates:
        return ways[max(rates, key=rates.__getitem__)]
    return next(((peer, peer.ways[0]) for peer in installed), None)


def _figures(run: Measurement, peer: str, source: str) -> list[Figure]:
    table = run.table(own=1)
    return [
        Figure(
            work=_WORK,
            peer=OURS if row.what == GATEWAY else NGINX if row.what.startswith("nginx") else peer,
            what=row.what,
            rate=row.rate,
            of_ours=round(row.rate / table[0].rate, 4),
            beside=GATEWAY,
            source=source,
            p50=row.p50,
            p95=row.p95,
            busy=row.busy,
        )
        for row in table
        if not row.failure
    ]


def _left_out(peer: str, what: str, reason: str) -> LeftOut:
    return LeftOut(work=_WORK, peer=peer, what=what, reason=reason)
