"""Compares hits of Sluicegate with nginx with Lua and with LiteLLM, each on one core."""

import tempfile
from collections.abc import Collection
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import httpx

from loadtests import hit, wrk
from loadtests.measured import OTHERS, SERVER, popular_bodies
from loadtests.peers.litellm import proxy
from loadtests.peers.measure import CONNECTIONS, LITELLM, NGINX, Effort
from loadtests.peers.servers import PeerFailed
from loadtests.report import table_of
from loadtests.rivals import nginx
from loadtests.turns import in_turns
from loadtests.workload import sentences


def measure_hits(peers: Collection[str], effort: Effort) -> None:
    """Measure all servers in each round; name each peer that is missing or does not start."""
    if not wrk.is_installed():
        print("left out: hits: `wrk` is needed; `make install-system` installs it")
        return
    bodies = popular_bodies()
    texts = sentences(len(bodies), seed=1)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        root = Path(folder)
        systems = hit.start_systems(stack, root, bodies)
        servers = {
            place: {f"Sluicegate, from {place}": (hit.candidate(system), bodies)}
            for place, system in zip(("memory", "Redis"), systems.values(), strict=True)
        }
        if NGINX in peers and nginx.is_installed():
            answer = hit.answer_of(systems, bodies[0])
            for what, rival in hit.rivals(stack, root, texts, answer=answer).items():
                servers[what.rpartition(" ")[2]][what] = rival, bodies
        elif NGINX in peers:
            print("left out: nginx + Lua: not installed: `make install-system`")
        if LITELLM in peers:
            try:
                asked = proxy.bodies(texts)
                started = proxy.proxy(root / "litellm", asked, core=SERVER, others=OTHERS)
                litellm = hit.Candidate(stack.enter_context(started), [], [])
                servers["Redis"]["LiteLLM, embeddings from Redis"] = litellm, asked
            except (PeerFailed, httpx.HTTPError) as error:
                print(f"left out: LiteLLM: {error}")
        load = hit.Load(root, CONNECTIONS, effort.duration, list(systems.values()))
        every = {what: each for some in servers.values() for what, each in some.items()}
        runs = in_turns(
            {what: partial(load.run, *each) for what, each in every.items()}, effort.rounds
        )
    for place, some in servers.items():
        effort.show(f"hits from {place}", table_of({what: runs[what] for what in some}))
