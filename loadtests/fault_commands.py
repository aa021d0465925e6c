"""Runs a fault test that has no command of its own yet."""

import click

from loadtests import batches, chaos_bulk, chaos_redis, chaos_sentinel, idempotency, power_cut


@click.command("chaos-bulk")
@click.option("--rows", default=20_000, help="Rows of the job.")
@click.option("--kills", default=10, help="How often it is killed.")
@click.option("--seed", default=1, help="Of the times of kills.")
@click.option("--runs", default=10.0, help="Over so many runs' time, at most.")
@click.option("--model", default="minilm", help="A demo model.")
@click.option("--task", default="embed", help="Of the model.")
def chaos_bulk_command(
    *, rows: int, kills: int, seed: int, runs: float, model: str, task: str
) -> None:
    """Kill a bulk job, and compare its output with an undisturbed run's."""
    chaos_bulk.measure(rows=rows, kills=kills, seed=seed, runs=runs, model=model, task=task)


@click.command("chaos-redis")
@click.option("--quiet", default=5.0, help="Seconds before and after a fault.")
@click.option("--faulty", default=10.0, help="Seconds of a fault.")
@click.option("--hits", default=300.0, help="Memory hits a second.")
@click.option("--misses", default=100.0, help="Misses a second.")
@click.option("--redis", type=click.Choice(["both", "cache", "state"]), default="both")
def chaos_redis_command(
    *, quiet: float, faulty: float, hits: float, misses: float, redis: str
) -> None:
    """Measure hits and misses while the cache's Redis, or the state's, fails."""
    chaos_redis.measure(redis=redis, quiet=quiet, faulty=faulty, hits=hits, misses=misses)


@click.command("chaos-sentinel")
@click.option("--kills", default=10)
def chaos_sentinel_command(*, kills: int) -> None:
    """Kill the primary of the state Redis under load, and compare answers, ledger and limits."""
    chaos_sentinel.measure(kills=kills)


@click.command("chaos-batches")
@click.option("--lines", default=100_000)
@click.option("--kill/--no-kill", default=True, help="Kill every process in turn.")
@click.option("--rounds", default=6, help="Of latencies alone and beside it.")
def chaos_batches_command(*, lines: int, kill: bool, rounds: int) -> None:
    """Kill every process while a batch runs; look for each line in output and ledger."""
    batches.measure(lines=lines, kill=kill, rounds=rounds)


@click.command("chaos-power")
def chaos_power_command() -> None:
    """Cut the power of a gateway machine under load, with its state Redis and without."""
    power_cut.measure()


@click.command("chaos-idempotency")
@click.option("--requests", default=1000, help="Keys, each sent twice or more.")
@click.option("--callers", default=16)
def chaos_idempotency_command(*, requests: int, callers: int) -> None:
    """Kill workers and Redis while requests with idempotency keys are repeated."""
    idempotency.measure(requests=requests, callers=callers)
