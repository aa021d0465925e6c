"""Says what a load takes: workers, cores, memory, backends, from figures of docs/performance.md.

`python -m tools.sizing --requests 2000 --hits 0.8` prints a table. It is arithmetic about means:
measure before you buy.
"""

import argparse
import math
import sys

import msgspec

from gateway.ledger.postgresql import CONNECTIONS
from tools.reference.markdown import table

_MIB = 1 << 20
_BESIDE_WORKERS = 4
"""Operators' listener, shipper, and batches process, which counts twice: it has two pools."""
_HEAD = ("what", "how much", "because")


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured on one core of an AMD EPYC, in seconds of its time and in bytes."""

    memory_hit: float = 11.9e-6
    redis_hit: float = 32.2e-6
    miss: float = 193e-6
    """Of a gateway worker, for an item that comes alone; 75e-6 where many callers miss together."""
    beside_hit: float = 4.1e-6
    """Of Redis and the processes of events."""
    beside_miss: float = 28e-6
    worker_bytes: int = 79 * _MIB
    """Of a worker without what its memory tier holds."""
    others_bytes: int = 232 * _MIB
    """Of supervisor, operators' listener, shipper, billing and request log together."""
    backend_bytes: int = 197 * _MIB
    """Of a backend with the demo models and its row cache."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked, in the mean of the busiest minute."""

    requests: float = 2_000.0
    """A second."""
    items: float = 1.0
    """Of a request."""
    hits: float = 0.8
    """Share of items that the cache answers."""
    memory_hits: float = 0.5
    """Share of those that the memory of a worker answers."""
    row_millis: float = 2.33
    """Processor time of a backend for a missed item; `sluicegate models tune` measures it."""
    answers: float = 1_000_000.0
    """Different items that are to stay in the cache."""
    answer_bytes: float = 250.0
    """Of an answer in Redis."""
    cores: int = 4
    """Of a machine of a backend."""
    use: float = 0.6
    """Share of a core that is used in that minute."""
    regions: int = 2
    """Of backends; any one of them may be lost."""
    memory_tier: float = 64.0
    """`cache.memory_bytes`, in MiB."""


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """What the load takes."""

    worker_cores: float
    workers: int
    """Of all gateways together; half of them may be lost."""
    beside_cores: float
    gateway_bytes: float
    """Of each of two gateways."""
    redis_bytes: float
    connections: int
    """To PostgreSQL, of two gateways and billing, at most."""
    backend_cores: float
    backends: int
    """In each region."""
    backend_bytes: int
    """Of each backend."""


def size(load: Load, costs: Costs) -> Size:
    """Return what a load takes: two gateways, either of which carries it, and backends likewise."""
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
    """Return the table of what a load takes."""
    found = size(load, costs)
    rows = [
        (
            "gateways",
            f"2, workers in each: {found.workers // 2}",
            f"{found.worker_cores:.2f} cores of work at {load.use:.0%}; one gateway carries it",
        ),
        (
            "cores of each gateway",
            f"{found.workers // 2 + _up(found.beside_cores / load.use)}",
            f"its workers, and {found.beside_cores:.2f} cores of work for events and Redis",
        ),
        (
            "memory of each gateway",
            f"{_mib(found.gateway_bytes)}",
            f"workers with {load.memory_tier:g} MiB of cache each, and the processes beside them",
        ),
        (
            "cache Redis",
            f"{_mib(found.redis_bytes)} of `maxmemory`",
            f"{load.answers:,.0f} answers of {load.answer_bytes:,.0f} bytes, and 30 % of slack",
        ),
        (
            "connections to PostgreSQL",
            f"{found.connections} at most",
            f"{CONNECTIONS} of each process; a gateway has {_BESIDE_WORKERS} beside its workers",
        ),
        (
            "backends",
            f"{found.backends} of {load.cores} cores in each of {load.regions} regions",
            f"{found.backend_cores:.2f} cores of work at {load.use:.0%}; a region may be lost",
        ),
        (
            "memory of each backend",
            f"{_mib(found.backend_bytes)}, and its models beyond the demo's",
            "weights are mapped once a process, whatever its threads",
        ),
    ]
    return table(_HEAD, rows).rstrip()


def _mib(size_bytes: float) -> str:
    return f"{_up(size_bytes / _MIB):,} MiB"


def main(arguments: list[str]) -> None:
    """Print what the load that the options describe takes."""
    parser = argparse.ArgumentParser(prog="make size", description="Say what a load takes.")
    for field in msgspec.structs.fields(Load):
        name = f"--{field.name.replace('_', '-')}"
        parser.add_argument(name, type=type(field.default), default=field.default)
    given = vars(parser.parse_args(arguments))
    bad = [name for name, value in given.items() if not 0 <= value < math.inf]
    bad += [name for name in ("hits", "memory_hits", "use") if given[name] > 1]
    bad += [name for name in ("use", "cores", "regions") if not given[name]]
    if bad:
        parser.error(f"`--{bad[0].replace('_', '-')}` is out of range: shares are 0 to 1")
    print(report(Load(**given), Costs()))


if __name__ == "__main__":
    main(sys.argv[1:])
