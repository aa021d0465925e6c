"""Runs Redis as several real servers: under Sentinel, or as a cluster."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from testing.ports import free_port
from testing.valkey import Valkey
from testing.waiting import wait_until

FAILOVER_TIMEOUT = 3.0
"""Seconds; a Sentinel that found no leader tries again after twice as long."""
_SLOTS = 16_384


class SentinelDeployment:
    """A primary, its replicas, and Sentinels that promote a replica when the primary ends.

    `primary` and `replica` keep their places when the roles change.
    """

    def __init__(self, servers: list[Valkey], sentinels: list[Valkey]) -> None:
        self.servers = servers
        self.primary, self.replica, *_ = servers
        self.sentinel = sentinels[0]
        self._ports = [sentinel.port for sentinel in sentinels]

    @property
    def url(self) -> str:
        """The URL by which the gateway finds the primary."""
        hosts = ",".join(f"127.0.0.1:{port}" for port in self._ports)
        return f"redis-sentinel://{hosts}/0?primary=cache"

    def has_failed_over(self) -> bool:
        """Return whether the replica is the primary now, also in Sentinel's view."""
        return self.current() is self.replica

    def current(self) -> Valkey | None:
        """Return the server that Sentinel names and that is a primary."""
        address = self.sentinel.ask("SENTINEL GET-MASTER-ADDR-BY-NAME cache")
        for server in self.servers:
            if str(server.port).encode() in address and server.is_running:
                return server if b"role:master" in server.ask("INFO replication") else None
        return None

    def kill_primary(self) -> Valkey:
        """Kill the present primary, and return it."""
        primary = self.current()
        assert primary is not None, "Sentinel names no primary"
        primary.kill()
        return primary

    def rejoin(self, server: Valkey) -> None:
        """Start a killed `server` as a replica, and return when all others follow the primary."""
        primary = self.current()
        assert primary is not None, "Sentinel names no primary"
        server.replica_of = primary.port
        server.start()
        wait_until(self._is_whole, what="a primary and its replicas")

    def _is_whole(self) -> bool:
        primary = self.current()
        return primary is not None and all(
            _is_copied(server) for server in self.servers if server is not primary
        )


@contextmanager
def sentinel_deployment(
    *arguments: str, replicas: int = 1, sentinels: int = 1, down_after: float = 0.3
) -> Iterator[SentinelDeployment]:
    """Run the servers with `arguments`; Sentinels declare a primary down after `down_after` s."""
    with ExitStack() as stack:
        options = ("--repl-diskless-sync-delay", "0", *arguments)
        servers = [Valkey(*options, port=free_port()) for _ in range(1 + replicas)]
        primary = servers[0]
        for server in servers:
            server.replica_of = 0 if server is primary else primary.port
            stack.enter_context(server)
        for server in servers[1:]:
            wait_until(partial(_is_copied, server), what="a replica")
        watchers = [Valkey("--sentinel", port=free_port()) for _ in range(sentinels)]
        for watcher in watchers:
            watcher.configuration = (
                f"sentinel monitor cache 127.0.0.1 {primary.port} {sentinels // 2 + 1}\n"
                f"sentinel down-after-milliseconds cache {down_after * 1000:.0f}\n"
                f"sentinel failover-timeout cache {FAILOVER_TIMEOUT * 1000:.0f}\n"
            )
            stack.enter_context(watcher)
        view = f"slaves={replicas},sentinels={sentinels}".encode()
        for watcher in watchers:
            wait_until(partial(_sees, watcher, view), within=60, what="Sentinel's view")
        yield SentinelDeployment(servers, watchers)


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
            wait_until(partial(_is_copied, replica), within=60, what="a replica's copy")
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


def is_primary(server: Valkey) -> bool:
    """Whether a node is a primary."""
    return b"role:master" in server.ask("INFO replication")


def _node() -> Valkey:
    clustered = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    hasty = ("--cluster-node-timeout", "500", "--cluster-replica-validity-factor", "0")
    careful = ("--cluster-require-full-coverage", "no", "--repl-diskless-sync-delay", "0")
    return Valkey(*clustered, *hasty, *careful, port=free_port())


def _sees(sentinel: Valkey, view: bytes) -> bool:
    return view in sentinel.ask("INFO sentinel")


def _do(server: Valkey, command: str) -> None:
    reply = server.ask(command)
    assert reply == b"+OK\r\n", reply


def _obeys(server: Valkey, command: str) -> bool:
    return server.ask(command) == b"+OK\r\n"


def _is_copied(server: Valkey) -> bool:
    return b"master_link_status:up" in server.ask("INFO replication")


def _bus(server: Valkey) -> int:
    """Return the port of a node's bus, from its line about itself."""
    line = server.ask("CLUSTER NODES").split(b"\r\n")[1]
    return int(line.partition(b"@")[2].partition(b" ")[0].partition(b",")[0])


def _is_whole(server: Valkey) -> bool:
    info = server.ask("CLUSTER INFO")
    return b"cluster_state:ok" in info and b"cluster_slots_assigned:16384" in info
