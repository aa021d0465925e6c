"""Measures hits of Sluicegate beside nginx with Lua and LiteLLM, each on one core, in turns."""

import tempfile
from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path

import httpx
import msgspec

from loadtests import hit, wrk
from loadtests.generator import Target
from loadtests.peers.comparison import OURS, Figure, Kind, LeftOut, Work
from loadtests.peers.litellm import proxy
from loadtests.rivals import nginx
from loadtests.workload import sentences

NGINX, LITELLM = "nginx", "litellm"
HIT_PEERS = (NGINX, LITELLM)
_TEXTS = 100
_WORK = Work(kind=Kind.HITS)
_MEMORY, _REDIS = "memory hit, fast path", "Redis hit (memory tier off)"
OURS_FROM_MEMORY = "Sluicegate, from memory"
OURS_FROM_REDIS = "Sluicegate, from Redis"
NGINX_MEMORY, NGINX_REDIS = "nginx + Lua, from memory", "nginx + Lua, from Redis"
LITELLM_REDIS = "LiteLLM, embeddings from Redis"
# What each is compared with: an answer from memory with one from memory.
_BESIDE = {
    OURS_FROM_MEMORY: OURS_FROM_MEMORY,
    NGINX_MEMORY: OURS_FROM_MEMORY,
    OURS_FROM_REDIS: OURS_FROM_REDIS,
    NGINX_REDIS: OURS_FROM_REDIS,
    LITELLM_REDIS: OURS_FROM_REDIS,
}
_LABELS = {NGINX: "nginx + Lua", LITELLM: "LiteLLM"}
_PEERS = {NGINX_MEMORY: NGINX, NGINX_REDIS: NGINX, LITELLM_REDIS: LITELLM}


class _Server(msgspec.Struct, frozen=True, kw_only=True):
    """Where a server answers, and what it is asked."""

    target: Target
    bodies: list[bytes]


def measure_hits(
    *, peers: Collection[str], connections: int, duration: float, rounds: int, source: str
) -> tuple[list[Figure], list[LeftOut]]:
    """Measure all in turns, each in `rounds` runs of `duration` seconds."""
    if not wrk.is_installed():
        reason = "`wrk` is needed; `make install-system` installs it"
        return [], [_left_out(peer, reason) for peer in peers]
    texts = sentences(_TEXTS, seed=1)
    bodies = [msgspec.json.encode({"model": "sentiment", "input": text}) for text in texts]
    runs: dict[str, list[wrk.WrkResult]] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        root = Path(folder)
        systems = hit.start_systems(stack, root, bodies, ways=(_MEMORY, _REDIS))
        ours = dict(zip((OURS_FROM_MEMORY, OURS_FROM_REDIS), systems.values(), strict=True))
        servers = {
            what: _Server(target=hit.target_of(system), bodies=bodies)
            for what, system in ours.items()
        }
        left_out = []
        if NGINX in peers:
            if nginx.is_installed():
                answer = hit.answer_of(systems, bodies[0])
                servers |= _nginx(stack, root, texts, bodies, answer)
            else:
                left_out.append(_left_out(NGINX, "not installed: `make install-system`"))
        if LITELLM in peers:
            try:
                servers[LITELLM_REDIS] = _litellm(stack, root, texts)
            except (RuntimeError, AssertionError, httpx.HTTPError) as error:
                left_out.append(_left_out(LITELLM, str(error)))
        for _ in range(rounds):
            for what, server in servers.items():
                runs.setdefault(what, []).append(_send(server, connections, duration, root))
                hit.settle(systems.values())
    figures, broken = _results(runs, source)
    return figures, left_out + broken


def _nginx(
    stack: ExitStack, root: Path, texts: list[str], bodies: list[bytes], answer: str
) -> dict[str, _Server]:
    redis, memory = hit.rivals(stack, root, texts, answer=answer).values()
    return {
        NGINX_MEMORY: _Server(target=memory.target, bodies=bodies),
        NGINX_REDIS: _Server(target=redis.target, bodies=bodies),
    }


def _litellm(stack: ExitStack, root: Path, texts: list[str]) -> _Server:
    """Start LiteLLM's proxy with all answers in its Redis.

    Raises:
        RuntimeError: it is not installed, or does not answer from Redis.
    """
    if not proxy.is_installed():
        raise RuntimeError("not installed: `make .venv-peers/litellm/.installed`")
    asked = proxy.bodies(texts)
    started = proxy.proxy(root / "litellm", asked, core=hit.SERVER, others=hit.OTHERS)
    return _Server(target=stack.enter_context(started), bodies=asked)


def _send(server: _Server, connections: int, duration: float, folder: Path) -> wrk.WrkResult:
    return wrk.send(
        server.target,
        server.bodies,
        connections=connections,
        duration=duration,
        core=hit.OTHERS,
        folder=folder,
    )


def _results(
    runs: dict[str, list[wrk.WrkResult]], source: str
) -> tuple[list[Figure], list[LeftOut]]:
    """Return the median run of each by its rate; a peer that refuses requests has none.

    Raises:
        RuntimeError: Sluicegate refused some.
    """
    broken = [what for what, sent in runs.items() if any(run.refused or run.broken for run in sent)]
    if ours := [what for what in broken if what not in _PEERS]:
        raise RuntimeError(f"{ours[0]}: requests were refused or broken")
    medians = {
        what: sorted(sent, key=lambda run: run.rate)[len(sent) // 2]
        for what, sent in runs.items()
        if what not in broken
    }
    figures = [
        Figure(
            work=_WORK,
            peer=_PEERS.get(what, OURS),
            what=what,
            rate=round(run.rate, 1),
            of_ours=round(run.rate / medians[_BESIDE[what]].rate, 4),
            beside=_BESIDE[what],
            source=source,
            p50=round(run.p50 * 1000, 2),
            p99=round(run.p99 * 1000, 2),
        )
        for what, run in medians.items()
    ]
    reason = "requests were refused or broken"
    return figures, [_left_out(_PEERS[what], reason) for what in broken]


def _left_out(peer: str, reason: str) -> LeftOut:
    return LeftOut(work=_WORK, peer=peer, what=_LABELS[peer], reason=reason)
