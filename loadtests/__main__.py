"""`python -m loadtests NAME`: measures on this machine, over loopback, and stops by itself."""

import click

from loadtests import dispatch, hit, miss, mixed, overload, rows, shares, threads
from loadtests.gpu.command import gpu_command
from loadtests.peers import measure as peers
from loadtests.peers.servers import PEERS


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


@main.command("dispatch")
@click.option("--count", default=5000, show_default=True, help="Items of each run.")
@click.option("--rounds", default=5, show_default=True, help="Runs of each; the median counts.")
def dispatch_command(*, count: int, rounds: int) -> None:
    """Processor time of the gateway for each item that it misses."""
    dispatch.measure(count=count, rounds=rounds)


@main.command("threads")
@click.option("--clients", default="1,2,4,8,16,32,64", show_default=True)
@click.option("--duration", default=3.0, show_default=True, help="Seconds of each run.")
@click.option("--rounds", default=3, show_default=True, help="Runs of each; the median counts.")
@click.option("--weigh-only", is_flag=True, help="Only the memory of the sessions.")
def threads_command(*, clients: str, duration: float, rounds: int, weigh_only: bool) -> None:
    """Threads by load beside fixed ones."""
    if not weigh_only:
        numbers = tuple(map(int, clients.split(",")))
        threads.measure(clients=numbers, duration=duration, rounds=rounds)
    threads.weigh()


@main.command("mixed")
@click.option("--duration", default=20.0, show_default=True, help="Seconds of each run.")
@click.option("--rounds", default=3, show_default=True, help="Runs of each; the median counts.")
def mixed_command(duration: float, rounds: int) -> None:
    """Short sentences with long documents among them, beside batches in order of arrival."""
    mixed.measure(duration=duration, rounds=rounds)


@main.command("rows")
@click.option("--connections", default=64, show_default=True)
@click.option("--count", default=300, show_default=True, help="Zero-shot requests of each run.")
@click.option("--rounds", default=3, show_default=True, help="Runs of each; the median counts.")
def rows_command(*, connections: int, count: int, rounds: int) -> None:
    """Requests of many rows beside requests of one row."""
    rows.measure(connections=connections, count=count, rounds=rounds)


@main.command("overload")
@click.option("--duration", default=30.0, show_default=True, help="Seconds at twice the capacity.")
@click.option("--deadline", default=0.5, show_default=True, help="Seconds a caller waits.")
def overload_command(duration: float, deadline: float) -> None:
    """Twice as much work as a backend can do."""
    overload.measure(duration=duration, deadline=deadline)


@main.command("shares")
@click.option("--phase", default=30.0, show_default=True, help="Seconds before and after the swap.")
@click.option("--overload", "times", default=1.3, show_default=True, help="Of what is possible.")
@click.option("--deadline", default=0.5, show_default=True, help="Seconds a caller waits.")
def shares_command(phase: float, times: float, deadline: float) -> None:
    """Two models, ten to one, beyond what the device can do."""
    shares.measure(phase=phase, overload=times, deadline=deadline)


@main.command("peers")
@click.option("--connections", default=32, show_default=True)
@click.option("--count", default=1500, show_default=True, help="Sentences of each run.")
@click.option("--rounds", default=3, show_default=True, help="Runs of each; the median counts.")
@click.option("--only", type=click.Choice(sorted(PEERS)), multiple=True, help="These peers only.")
@click.option("--tune", is_flag=True, help="Try every way of running them, once each.")
def peers_command(
    *, connections: int, count: int, rounds: int, only: tuple[str, ...], tune: bool
) -> None:
    """The same work under LitServe, BentoML and Triton."""
    names = only or tuple(PEERS)
    if tune:
        peers.tune(peers=names, connections=connections, count=count)
    else:
        peers.measure(peers=names, connections=connections, count=count, rounds=rounds)


main.add_command(gpu_command)

if __name__ == "__main__":
    main()
