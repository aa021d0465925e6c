"""Takes each container and each network of the layout away, one after the other, and back."""

import subprocess
from collections.abc import Callable, Iterable, Iterator

import msgspec
from typing_extensions import override

from loadtests.arena.faults import Fault
from loadtests.arena.judging import Window
from loadtests.arena.podman import inspect, run
from loadtests.arena.system import Arena, ArenaError
from loadtests.arena.topology import PREFIX, Service

HOLD = 10.0
"""Seconds for which a container or a network is away: a failover of the state Redis takes fewer."""
_WINDOWS = {
    # One balancer alone: who asks while it is away gets no answer.
    "load-balancer": Window(is_open=True, after_end=5),
    "edge": Window(is_open=True, after_end=10),
    # What a gateway had taken when it died; a request that was sent is not repeated.
    "gateway": Window(after_begin=3),
    # No model can be reached: what is not in the cache cannot be answered.
    "backends": Window(is_open=True, after_end=10),
}
_NEVER = Window()


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """One loss: how it begins and ends, and when callers may see errors."""

    name: str
    window: Window
    begin: Callable[[], None]
    end: Callable[[], None]


class LoseContainer(Fault):
    """Kills a container and starts it again later: its machine went down."""

    hold = HOLD

    @override
    def begin(self) -> None:
        """Kill it, and keep the engine from starting it again."""
        run("stop", "--time", "0", self.service.container)

    @override
    def end(self) -> None:
        """Start it."""
        run("start", self.service.container)
        self.ready()


class NetworkCut:
    """Drops everything but name look-ups between all containers of a network.

    Names are left since Docker's containers ask a server of their own.
    """

    def __init__(self, arena: Arena, network: str) -> None:
        self._arena = arena
        self._network = PREFIX + network
        self.members = [s for s in _going_on(arena) if network in s.networks]
        self._cut: list[int] = []

    def begin(self) -> None:
        """Cut it."""
        (found,) = msgspec.json.decode(run("network", "inspect", self._network))
        self._subnet = found["subnets"][0]["subnet"]
        self._cut = [inspect(each.container).pid for each in self.members]
        for pid in self._cut:
            self._drop("--insert", pid)

    def end(self) -> None:
        """Mend it."""
        for pid in self._cut:
            self._drop("--delete", pid)
        self._arena.until_healthy([each.name for each in self.members])

    def _drop(self, action: str, pid: int) -> None:
        for chain, side in (("INPUT", "--source"), ("OUTPUT", "--destination")):
            rule = (action, chain, side, self._subnet, "--protocol", "tcp", "--jump", "DROP")
            command = ("nsenter", f"--target={pid}", "--net", "iptables", "--wait", *rule)
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            if done.returncode:
                raise ArenaError(f"{self._network}: {done.stderr.strip()}")


def losses(arena: Arena, networks: Iterable[str]) -> Iterator[Loss]:
    """Yield the loss of each container that does not end by itself, and of each network."""
    for service in _going_on(arena):
        fault = LoseContainer(arena, service)
        yield Loss(name=service.name, window=window(service), begin=fault.begin, end=fault.end)
    for network in networks:
        cut = NetworkCut(arena, network)
        allowed = _WINDOWS.get(network, _NEVER)
        yield Loss(name=f"network {network}", window=allowed, begin=cut.begin, end=cut.end)


def _going_on(arena: Arena) -> list[Service]:
    return [each for each in arena.services.values() if not each.ends]


def window(service: Service) -> Window:
    """Return when the loss of a service may show."""
    kind = service.name if service.name in _WINDOWS else service.name.rpartition("-")[0]
    return _WINDOWS.get(kind, _NEVER)
