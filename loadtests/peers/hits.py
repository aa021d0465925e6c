"""Measures hits of Sluicegate beside nginx with Lua and LiteLLM, each on one core, in turns."""

import tempfile
from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path

import httpx
import msgspec

from loadtests import hit, wrk
from loadtests.generator import Target
from loadtests.peers.comparison import (
    OURS,
    Effort,
    Figure,
    Kind,
    LeftOut,
    Run,
    Subject,
    Work,
    figures_of,
)
from loadtests.peers.litellm import proxy
from loadtests.rivals import nginx
from loadtests.workload import sentences
from testing.system import System

NGINX, LITELLM = "nginx", "litellm"
HIT_PEERS = (NGINX, LITELLM)
_TEXTS = 100
_WORK = Work(kind=Kind.HITS)
_WAYS = ("memory hit, fast path", "Redis hit (memory tier off)")
_MEMORY, _REDIS = "Sluicegate, from memory", "Sluicegate, from Redis"
_LABELS = {NGINX: "nginx + Lua", LITELLM: "LiteLLM"}


def measure_hits(
    peers: Collection[str], effort: Effort, *, source: str
) -> tuple[list[Figure], list[LeftOut]]:
    """Measure all in turns; a peer that is missing, or refuses requests, has no figure.

    Raises:
        RuntimeError: Sluicegate refused some.
    """
    missing: dict[str, str] = {}
    if not wrk.is_installed():
        missing = dict.fromkeys(peers, "`wrk` is needed; `make install-system` installs it")
        return [], _left_out(missing)
    runs: dict[Subject, list[Run]] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        root = Path(folder)
        systems, servers = _start(stack, root, peers, missing)
        for _ in range(effort.rounds):
            for subject, (target, bodies) in servers.items():
                sent = wrk.send(
                    target,
                    bodies,
                    connections=effort.connections,
                    duration=effort.duration,
                    core=hit.OTHERS,
                    folder=root,
                )
                hit.settle(systems)
                if sent.failed:
                    missing[subject.peer] = "requests were refused or broken"
                p50, p99 = (round(sent.percentile(share) * 1000, 2) for share in (0.5, 0.99))
                run = Run(rate=round(sent.rate, 1), p50=p50, p99=p99)
                runs.setdefault(subject, []).append(run)
    if OURS in missing:
        raise RuntimeError(f"Sluicegate: {missing[OURS]}")
    kept = {subject: found for subject, found in runs.items() if subject.peer not in missing}
    return figures_of(_WORK, kept, source), _left_out(missing)


def _start(
    stack: ExitStack, root: Path, peers: Collection[str], missing: dict[str, str]
) -> tuple[list[System], dict[Subject, tuple[Target, list[bytes]]]]:
    """Start all servers with all answers in their caches, or note why one is `missing`."""
    texts = sentences(_TEXTS, seed=1)
    bodies = [msgspec.json.encode({"model": "sentiment", "input": text}) for text in texts]
    systems = hit.start_systems(stack, root, bodies, ways=_WAYS)
    servers = {
        Subject(peer=OURS, what=what, beside=what): (hit.target_of(system), bodies)
        for what, system in zip((_MEMORY, _REDIS), systems.values(), strict=True)
    }
    if NGINX in peers and not nginx.is_installed():
        missing[NGINX] = "not installed: `make install-system`"
    elif NGINX in peers:
        answer = hit.answer_of(systems, bodies[0])
        redis, memory = hit.rivals(stack, root, texts, answer=answer).values()
        for place, beside, rival in (("memory", _MEMORY, memory), ("Redis", _REDIS, redis)):
            subject = Subject(peer=NGINX, what=f"nginx + Lua, from {place}", beside=beside)
            servers[subject] = rival.target, bodies
    if LITELLM in peers:
        subject = Subject(peer=LITELLM, what="LiteLLM, embeddings from Redis", beside=_REDIS)
        try:
            servers[subject] = _litellm(stack, root, texts)
        except (RuntimeError, AssertionError, httpx.HTTPError) as error:
            missing[LITELLM] = str(error)
    return list(systems.values()), servers


def _litellm(stack: ExitStack, root: Path, texts: list[str]) -> tuple[Target, list[bytes]]:
    """Start LiteLLM's proxy with all answers in its Redis.

    Raises:
        RuntimeError: it is not installed, or does not answer from Redis.
    """
    if not proxy.is_installed():
        raise RuntimeError("not installed: `make .venv-peers/litellm/.installed`")
    asked = proxy.bodies(texts)
    started = proxy.proxy(root / "litellm", asked, core=hit.SERVER, others=hit.OTHERS)
    return stack.enter_context(started), asked


def _left_out(missing: dict[str, str]) -> list[LeftOut]:
    return [
        LeftOut(work=_WORK, peer=peer, what=_LABELS[peer], reason=reason)
        for peer, reason in missing.items()
    ]
