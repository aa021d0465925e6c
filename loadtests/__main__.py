"""`python -m loadtests NAME`: measures on this machine, over loopback, and stops by itself."""

import click

from loadtests import hit, miss, overload, threads
from loadtests.gpu.command import gpu_command


@click.group()
def main() -> None:
    """Measure Sluicegate beside a baseline in the same run."""


@main.command("hit")
@click.option("--connections", default=32, show_default=True)
@click.option("--duration", default=5.0, show_default=True, help="Seconds of each run.")
@click.option("--rounds", default=5, show_default=True, help="Runs of each; the median counts.")
def hit_command(connections: int, duration: float, rounds: int) -> None:
    """Answers from the cache by tier and door, and rivals doing the like."""
    hit.measure(connections=connections, duration=duration, rounds=rounds)


@main.command("miss")
@click.option("--connections", default=32, show_default=True)
@click.option("--count", default=3000, show_default=True, help="Sentences of each run.")
@click.option("--rounds", default=3, show_default=True, help="Runs of each; the median counts.")
@click.option("--one-core", is_flag=True, help="The model has a core, the rest another.")
def miss_command(*, connections: int, count: int, rounds: int, one_core: bool) -> None:
    """Answers that run the model."""
    miss.measure(connections=connections, count=count, rounds=rounds, one_core=one_core)


@main.command("threads")
@click.option("--clients", default="1,2,4,8,16,32,64", show_default=True)
@click.option("--duration", default=3.0, show_default=True, help="Seconds of each run.")
@click.option("--rounds", default=3, show_default=True, help="Runs of each; the median counts.")
def threads_command(clients: str, duration: float, rounds: int) -> None:
    """Threads by load beside fixed ones."""
    numbers = tuple(map(int, clients.split(",")))
    threads.measure(clients=numbers, duration=duration, rounds=rounds)


@main.command("overload")
@click.option("--duration", default=30.0, show_default=True, help="Seconds at twice the capacity.")
@click.option("--deadline", default=0.5, show_default=True, help="Seconds a caller waits.")
def overload_command(duration: float, deadline: float) -> None:
    """Twice as much work as a backend can do."""
    overload.measure(duration=duration, deadline=deadline)


main.add_command(gpu_command)

if __name__ == "__main__":
    main()
