"""Runs a Ray cluster of several nodes on this machine, and can kill a node."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bulk.ray_import import import_ray

_STORE_BYTES = 100 << 20


class RayCluster:
    """Holds a head, which has no processors for work unless told, and nodes with one each."""

    def __init__(self, nodes: int, *, head_cores: int = 0) -> None:
        utilities = import_ray("ray.cluster_utils")
        head = {"num_cpus": head_cores, "object_store_memory": _STORE_BYTES}
        self._cluster: Any = utilities.Cluster(initialize_head=True, head_node_args=head)
        self._nodes = [self._add() for _ in range(nodes)]

    def _add(self) -> Any:
        return self._cluster.add_node(num_cpus=1, object_store_memory=_STORE_BYTES)

    @property
    def address(self) -> str:
        """Where the cluster is reached."""
        return str(self._cluster.address)

    def kill_node(self) -> None:
        """Kill all processes of one node."""
        self._cluster.remove_node(self._nodes.pop(), allow_graceful=False)

    def close(self) -> None:
        """End every node."""
        self._cluster.shutdown()


@contextmanager
def running_cluster(nodes: int, *, head_cores: int = 0) -> Iterator[RayCluster]:
    """Start a cluster, and end it."""
    cluster = RayCluster(nodes, head_cores=head_cores)
    try:
        yield cluster
    finally:
        cluster.close()
