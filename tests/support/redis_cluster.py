"""Runs Redis as a cluster of several real servers, and moves its slots."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from testing.ports import free_port
from testing.redis_deployments import is_copied
from testing.valkey import Valkey
from testing.waiting import wait_until

_SLOTS = 16_384


@contextmanager
def cluster_of(nodes: int, *, replicated: bool = False) -> Iterator[list[Valkey]]:
    """Run a cluster whose nodes own equal shares of the slots.

    With `replicated`, each primary has a replica, which takes over after half a second. The
    replicas follow the primaries, in the same order.
    """
    with ExitStack() as stack:
        servers = [stack.enter_context(_node()) for _ in range(nodes * (1 + replicated))]
        primaries, replicas = servers[:nodes], servers[nodes:]
        for server in servers[1:]:
            reply = server.ask(f"CLUSTER MEET 127.0.0.1 {servers[0].port} {_bus(servers[0])}")
            assert reply == b"+OK\r\n", reply
        for index, server in enumerate(primaries):
            first, last = index * _SLOTS // nodes, (index + 1) * _SLOTS // nodes - 1
            assert server.ask(f"CLUSTER ADDSLOTSRANGE {first} {last}") == b"+OK\r\n"
        for server in servers:
            wait_until(partial(_is_whole, server), within=60, what="a whole cluster")
        for primary, replica in zip(primaries, replicas, strict=False):
            name = node_id(primary)
            wait_until(
                partial(_obeys, replica, f"CLUSTER REPLICATE {name}"), within=30, what="a replica"
            )
            wait_until(partial(is_copied, replica), within=60, what="a replica's copy")
        yield servers


def node_id(server: Valkey) -> str:
    """Return a node's id in its cluster."""
    return server.ask("CLUSTER MYID").split(b"\r\n")[1].decode()


def move_slots(slots: Iterable[int], source: Valkey, target: Valkey) -> None:
    """Give the empty `slots` of one node of a cluster to another.

    Only a node that imports a slot takes a new epoch with it: without one, a message that the
    `source` had sent before would give the slot back, and the nodes would disagree for ever.
    """
    old, new = node_id(source), node_id(target)
    for slot in slots:
        _do(target, f"CLUSTER SETSLOT {slot} IMPORTING {old}")
        _do(source, f"CLUSTER SETSLOT {slot} MIGRATING {new}")
        for server in (target, source):
            _do(server, f"CLUSTER SETSLOT {slot} NODE {new}")


def _node() -> Valkey:
    clustered = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    hasty = ("--cluster-node-timeout", "500", "--cluster-replica-validity-factor", "0")
    careful = ("--cluster-require-full-coverage", "no", "--repl-diskless-sync-delay", "0")
    return Valkey(*clustered, *hasty, *careful, port=free_port())


def _do(server: Valkey, command: str) -> None:
    reply = server.ask(command)
    assert reply == b"+OK\r\n", reply


def _obeys(server: Valkey, command: str) -> bool:
    return server.ask(command) == b"+OK\r\n"


def _bus(server: Valkey) -> int:
    """Return the port of a node's bus, from its line about itself."""
    line = server.ask("CLUSTER NODES").split(b"\r\n")[1]
    return int(line.partition(b"@")[2].partition(b" ")[0].partition(b",")[0])


def _is_whole(server: Valkey) -> bool:
    info = server.ask("CLUSTER INFO")
    return b"cluster_state:ok" in info and b"cluster_slots_assigned:16384" in info
