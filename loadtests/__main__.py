"""`python -m loadtests hit|miss|gpu`: measures this machine, over loopback, and stops by itself."""

import click

from loadtests.gpu.command import gpu_command


@click.group()
def main() -> None:
    """Measure Sluicegate beside a baseline in the same run."""


@main.command("hit")
@click.option("--connections", default=32, show_default=True)
@click.option("--duration", default=5.0, show_default=True, help="Seconds of each run.")
@click.option("--rounds", default=3, show_default=True, help="Runs of each; the median counts.")
def hit_command(connections: int, duration: float, rounds: int) -> None:
    """Answers from the cache: the memory tier, and Redis with the memory tier off."""
    # Each measurement needs packages that another may do without.
    from loadtests import hit  # noqa: PLC0415

    hit.measure(connections=connections, duration=duration, rounds=rounds)


@main.command("miss")
@click.option("--connections", default=32, show_default=True)
@click.option("--count", default=3000, show_default=True, help="Sentences of each run.")
@click.option("--rounds", default=3, show_default=True, help="Runs of each; the median counts.")
def miss_command(connections: int, count: int, rounds: int) -> None:
    """Answers that run the model."""
    from loadtests import miss  # noqa: PLC0415

    miss.measure(connections=connections, count=count, rounds=rounds)


main.add_command(gpu_command)

if __name__ == "__main__":
    main()
