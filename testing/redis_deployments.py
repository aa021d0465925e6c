"""Runs Redis as a primary, its replicas, and Sentinels that promote a replica."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from testing.ports import free_port
from testing.valkey import Valkey
from testing.waiting import wait_until

FAILOVER_TIMEOUT = 3.0
"""Seconds. A Sentinel whose election had no winner tries again after twice this time."""


class SentinelDeployment:
    """A primary, its replicas, and Sentinels that promote a replica when the primary ends.

    `primary` and `replica` are named after the roles at the start. The names do not follow a change
    of roles.
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
        """Return whether the replica is the primary now, and Sentinel names it as the primary."""
        return self.current() is self.replica

    def current(self) -> Valkey | None:
        """Return the server that Sentinel names as the primary, once this server is a primary."""
        address = self.sentinel.ask("SENTINEL GET-MASTER-ADDR-BY-NAME cache")
        for server in self.servers:
            if str(server.port).encode() in address and server.is_running:
                return server if is_primary(server) else None
        return None

    def kill_primary(self) -> Valkey:
        """Kill the current primary, and return it."""
        primary = self._primary()
        primary.kill()
        return primary

    def rejoin(self, server: Valkey) -> None:
        """Start a killed server as a replica; return when all replicas follow the primary."""
        server.replica_of = self._primary().port
        server.start()
        wait_until(self._is_whole, what="a primary and its replicas")

    def _primary(self) -> Valkey:
        primary = self.current()
        assert primary is not None, "Sentinel names no primary"
        return primary

    def _is_whole(self) -> bool:
        primary = self.current()
        return primary is not None and all(
            is_copied(server) for server in self.servers if server is not primary
        )


@contextmanager
def sentinel_deployment(
    *arguments: str, replicas: int = 1, sentinels: int = 1, down_after: float = 0.3
) -> Iterator[SentinelDeployment]:
    """Run the servers, each with `arguments`.

    Sentinels declare a primary down after `down_after` seconds without an answer.
    """
    with ExitStack() as stack:
        options = ("--repl-diskless-sync-delay", "0", *arguments)
        servers = [Valkey(*options, port=free_port()) for _ in range(1 + replicas)]
        primary = servers[0]
        for server in servers:
            server.replica_of = 0 if server is primary else primary.port
            stack.enter_context(server)
        for server in servers[1:]:
            wait_until(partial(is_copied, server), what="a replica")
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


def is_primary(server: Valkey) -> bool:
    """Return whether a server is a primary."""
    return b"role:master" in server.ask("INFO replication")


def is_copied(server: Valkey) -> bool:
    """Return whether a replica follows its primary."""
    return b"master_link_status:up" in server.ask("INFO replication")


def _sees(sentinel: Valkey, view: bytes) -> bool:
    return view in sentinel.ask("INFO sentinel")
