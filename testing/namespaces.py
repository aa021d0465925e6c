"""Joins network namespaces by a bridge and drops packets between any two of them.

The namespaces have no route to the machine, because the bridge is in a separate namespace.
"""

import contextlib
import ctypes
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

_NAMED = Path("/var/run/netns")
_NETWORK = 0x4000_0000
"""The flag `CLONE_NEWNET` of Linux."""
_PREFIX = "10.87.0"
_BRIDGE = "bridge"


def missing() -> str:
    """Return why namespaces cannot be made on this machine; "" if they can."""
    if os.geteuid() != 0:
        return "only root makes network namespaces"
    absent = [program for program in ("ip", "iptables") if shutil.which(program) is None]
    if absent:
        return f"{' and '.join(absent)} not installed (make install-system)"
    try:
        with NamespaceNetwork(["a", "b"]) as network:
            network.drop("a", "b")
    except subprocess.CalledProcessError as error:
        return f"the kernel refuses `{' '.join(error.cmd)}`"
    return ""


class NamespaceNetwork:
    """Holds a connected namespace for each of `members` while entered."""

    def __init__(self, members: Sequence[str]) -> None:
        self._run_name = f"sluicegate-{secrets.token_hex(3)}"
        self._places = {name: place for place, name in enumerate(members, start=1)}

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            hub = self._namespace(_BRIDGE)
            stack.callback(self._delete)
            _run("ip", "netns", "add", hub)
            _run("ip", "-n", hub, "link", "add", "br0", "type", "bridge")
            _run("ip", "-n", hub, "link", "set", "br0", "up")
            for name, place in self._places.items():
                self._join(hub, name, f"v{place}")
            stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._delete()

    def address(self, name: str) -> str:
        """Return the address of a member."""
        return f"{_PREFIX}.{self._places[name]}"

    def command(self, name: str, *argv: str) -> list[str]:
        """Return the command that runs `argv` in a member's namespace.

        `ip` replaces itself by `argv`, so the process id of the command is the id of `argv`.
        """
        return ["ip", "netns", "exec", self._namespace(name), *argv]

    def drop(self, source: str, target: str) -> None:
        """Drop every packet from one member to another when it arrives."""
        rule = ("iptables", "-A", "INPUT", "-s", self.address(source), "-j", "DROP")
        _run(*self.command(target, *rule))

    def restore_traffic(self) -> None:
        """Stop dropping packets."""
        for name in self._places:
            _run(*self.command(name, "iptables", "-F", "INPUT"))

    @contextlib.contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """While entered, sockets that this thread opens are in the namespace of a member."""
        with Path("/proc/thread-self/ns/net").open("rb") as own:
            with (_NAMED / self._namespace(name)).open("rb") as other:
                _enter(other.fileno())
            try:
                yield
            finally:
                _enter(own.fileno())

    def _join(self, hub: str, name: str, link: str) -> None:
        own = self._namespace(name)
        _run("ip", "netns", "add", own)
        peer = ("peer", "name", "eth0", "netns", own)
        _run("ip", "link", "add", link, "netns", hub, "type", "veth", *peer)
        _run("ip", "-n", hub, "link", "set", link, "master", "br0", "up")
        _run("ip", "-n", own, "address", "add", f"{self.address(name)}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _run("ip", "-n", own, "link", "set", device, "up")

    def _delete(self) -> None:
        for name in (*self._places, _BRIDGE):
            namespace = self._namespace(name)
            if (_NAMED / namespace).exists():
                _run("ip", "netns", "del", namespace)

    def _namespace(self, name: str) -> str:
        return f"{self._run_name}-{name}"


def _enter(namespace: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.setns(namespace, _NETWORK) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
