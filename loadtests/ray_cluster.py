"""Runs a Ray cluster of several nodes on this machine, and can kill a node."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sluicegate.bulk.ray_import import import_ray

_STORE_BYTES = 100 << 20


class RayCluster:
    """Holds a head node, which runs no work, and other nodes with one processor each."""

    def __init__(self, nodes: int) -> None:
        utilities = import_ray("ray.cluster_utils")
        head = {"num_cpus": 0, "object_store_memory": _STORE_BYTES}
        self.cluster: Any = utilities.Cluster(initialize_head=True, head_node_args=head)
        node = {"num_cpus": 1, "object_store_memory": _STORE_BYTES}
        self._nodes = [self.cluster.add_node(**node) for _ in range(nodes)]

    @property
    def address(self) -> str:
        """The address of the head node."""
        return str(self.cluster.address)

    def kill_node(self) -> None:
        """Kill all processes of one node."""
        self.cluster.remove_node(self._nodes.pop(), allow_graceful=False)


@contextmanager
def running_cluster(nodes: int) -> Iterator[RayCluster]:
    """Start a cluster, and end it at the exit."""
    running = RayCluster(nodes)
    try:
        yield running
    finally:
        running.cluster.shutdown()
