"""Runs one load process, its specification on standard input: `python -m loadtests.gpu.client`."""

import asyncio
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from loadtests.generator import Target, closed_loop
from loadtests.gpu.models import texts
from loadtests.gpu.plan import Options


class LoadSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The work of a load process; each request has `items` texts."""

    port: int
    key: str
    connections: int
    seconds: float
    items: int
    seed: int
    length: int
    tiny: bool


class LoadResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a load process; latencies in seconds, at most a few thousand."""

    requests: int
    duration: float
    statuses: dict[int, int]
    latencies: list[float]


def main() -> None:
    """Send what the orders say, and print the answer."""
    orders = msgspec.json.decode(sys.stdin.buffer.read(), type=LoadSpec)
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, allowed))
    target = Target(
        host="127.0.0.1",
        port=orders.port,
        path="/v1/classify",
        headers=(("authorization", f"Bearer {orders.key}"),),
    )
    outcome = asyncio.run(
        closed_loop(
            target, _bodies(orders), connections=orders.connections, duration=orders.seconds
        )
    )
    step = max(1, len(outcome.latencies) // 2000)
    answer = LoadResult(
        requests=len(outcome.latencies),
        duration=outcome.duration,
        statuses=outcome.statuses,
        latencies=outcome.latencies[::step],
    )
    sys.stdout.buffer.write(msgspec.json.encode(answer))


def _bodies(orders: LoadSpec) -> Iterator[bytes]:
    options = Options(output=Path(), work=Path(), tiny=orders.tiny)
    source = texts(options, length=orders.length, seed=orders.seed)
    while True:
        given = [next(source) for _ in range(orders.items)]
        document = {"model": "bench", "input": given[0] if orders.items == 1 else given}
        yield msgspec.json.encode(document)


if __name__ == "__main__":
    main()
