"""Estimates the workers, cores, memory and backends that a load needs.

`python -m tools.sizing --requests 2000 --hits 0.8` prints a table. The costs of a request are those
of docs/performance.md. They are averages, so measure before you buy.
"""

import argparse
import math
import sys

import msgspec

from sluicegate.gateway.ledger.postgresql import CONNECTIONS
from tools.reference.markdown import table

_MIB = 1 << 20
_BESIDE_WORKERS = 4
"""The operators' listener, the shipper and the batches process, which is included twice because it
has two connection pools."""
_HEAD = ("resource", "amount", "reason")


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """Costs measured on one core of an AMD EPYC: CPU time in seconds, memory in bytes."""

    memory_hit: float = 11.9e-6
    redis_hit: float = 32.2e-6
    miss: float = 193e-6
    """CPU time of a worker for a cache miss that is the only item of its request; 75e-6 if many
    callers miss at the same time."""
    beside_hit: float = 4.1e-6
    """CPU time of Redis and the event processes for a hit."""
    beside_miss: float = 28e-6
    worker_bytes: int = 79 * _MIB
    """Memory of a worker without its cache."""
    others_bytes: int = 232 * _MIB
    """Memory of the supervisor, operators' listener, shipper, billing and request log together."""
    backend_bytes: int = 197 * _MIB
    """Memory of a backend with the demo models and its row cache."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The average load in the busiest minute."""

    requests: float = 2_000.0
    """Requests a second."""
    items: float = 1.0
    """Items in a request."""
    hits: float = 0.8
    """Fraction of items that are cache hits."""
    memory_hits: float = 0.5
    """Fraction of the hits that come from a worker's memory; all others come from Redis."""
    row_millis: float = 2.33
    """CPU time of a backend for a missed item. `sluicegate models tune` measures it."""
    answers: float = 1_000_000.0
    """Distinct items that the cache should hold."""
    answer_bytes: float = 250.0
    """Bytes of one result in Redis."""
    cores: int = 4
    """Cores of each machine with a backend."""
    use: float = 0.6
    """Fraction of each core's time that may be used in the busiest minute."""
    regions: int = 2
    """The number of backend regions. If any one region is lost, the other regions must carry the
    load."""
    memory_tier: float = 64.0
    """`cache.memory_bytes`, in MiB."""


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """The resources that a load needs."""

    worker_cores: float
    workers: int
    """The number of workers of both gateways together. One gateway must carry the load if the other
    is lost."""
    beside_cores: float
    gateway_bytes: float
    """Memory of each of two gateways."""
    redis_bytes: float
    connections: int
    """The most connections to PostgreSQL from both gateways and billing."""
    backend_cores: float
    backends: int
    """The number of backends in each region."""
    backend_bytes: int
    """Memory of each backend."""


def size(load: Load, costs: Costs) -> Size:
    """Return the resources that a load needs.

    There are two gateways, and each of them can carry the load without the other one. The backends
    can carry the load when any one region is lost.
    """
    items = load.requests * load.items
    hits, misses = items * load.hits, items * (1 - load.hits)
    of_memory = hits * load.memory_hits
    worker_cores = (
        of_memory * costs.memory_hit + (hits - of_memory) * costs.redis_hit + misses * costs.miss
    )
    backend_cores = misses * load.row_millis / 1_000
    each = _up(worker_cores / load.use)
    carrying = max(load.regions - 1, 1)
    return Size(
        worker_cores=worker_cores,
        workers=2 * each,
        beside_cores=hits * costs.beside_hit + misses * costs.beside_miss,
        gateway_bytes=each * (costs.worker_bytes + load.memory_tier * _MIB) + costs.others_bytes,
        redis_bytes=load.answers * load.answer_bytes * 1.3,
        connections=(2 * (each + _BESIDE_WORKERS) + 1) * CONNECTIONS,
        backend_cores=backend_cores,
        backends=_up(backend_cores / load.use / load.cores / carrying),
        backend_bytes=costs.backend_bytes,
    )


def _up(value: float) -> int:
    return max(math.ceil(value), 1)


def report(load: Load, costs: Costs) -> str:
    """Return a table of the resources that a load needs."""
    found = size(load, costs)
    rows = [
        (
            "gateways",
            f"2, workers in each: {found.workers // 2}",
            f"{found.worker_cores:.2f} busy cores at {load.use:.0%} use; one gateway can carry it",
        ),
        (
            "cores of each gateway",
            f"{found.workers // 2 + _up(found.beside_cores / load.use)}",
            f"its workers, and {found.beside_cores:.2f} busy cores for events and Redis",
        ),
        (
            "memory of each gateway",
            f"{_mib(found.gateway_bytes)}",
            f"workers with {load.memory_tier:g} MiB of cache each, and the other processes",
        ),
        (
            "cache Redis",
            f"{_mib(found.redis_bytes)} of `maxmemory`",
            f"{load.answers:,.0f} results of {load.answer_bytes:,.0f} bytes, and 30 % spare",
        ),
        (
            "connections to PostgreSQL",
            f"{found.connections} at most",
            f"{CONNECTIONS} for each process; a gateway has {_BESIDE_WORKERS} besides its workers",
        ),
        (
            "backends",
            f"{found.backends} of {load.cores} cores in each of {load.regions} regions",
            f"{found.backend_cores:.2f} busy cores at {load.use:.0%} use; one region may be lost",
        ),
        (
            "memory of each backend",
            f"{_mib(found.backend_bytes)}, plus models other than the demo's",
            "a process maps its weights once for all threads",
        ),
    ]
    return table(_HEAD, rows).rstrip()


def _mib(size_bytes: float) -> str:
    return f"{_up(size_bytes / _MIB):,} MiB"


def main(arguments: list[str]) -> None:
    """Print the resources for the load that the options describe."""
    parser = argparse.ArgumentParser(
        prog="make size", description="Estimate the resources that a load needs."
    )
    for field in msgspec.structs.fields(Load):
        name = f"--{field.name.replace('_', '-')}"
        parser.add_argument(name, type=type(field.default), default=field.default)
    given = vars(parser.parse_args(arguments))
    bad = [name for name, value in given.items() if not 0 <= value < math.inf]
    bad += [name for name in ("hits", "memory_hits", "use") if given[name] > 1]
    bad += [name for name in ("use", "cores", "regions") if not given[name]]
    if bad:
        parser.error(f"`--{bad[0].replace('_', '-')}` is out of range; fractions are from 0 to 1")
    print(report(Load(**given), Costs()))


if __name__ == "__main__":
    main(sys.argv[1:])
