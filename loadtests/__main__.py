"""Runs a load test, benchmark or fault test on this machine: `python -m loadtests NAME`."""

import click

from loadtests import (
    batches,
    bulk,
    console,
    dialect_hits,
    dispatch,
    hit,
    hostile,
    latency,
    limits,
    memory,
    miss,
    mixed,
    overload,
    pipeline,
    precision,
    regions,
    rows,
    shares,
    threads,
    traced_hits,
    whole_requests,
)
from loadtests.dashboards.check import dashboards_command
from loadtests.faults.command import faults_command
from loadtests.fuzz_amplification.command import fuzz_amplification_command
from loadtests.fuzz_api.command import fuzz_api_command
from loadtests.fuzz_dialects.command import fuzz_dialects_command
from loadtests.fuzz_http.command import fuzz_http_command
from loadtests.gpu.command import gpu_command
from loadtests.growth.command import growth_command
from loadtests.peers.command import peers_command
from loadtests.scaling import scaling_command
from loadtests.simulate.command import simulate_command
from loadtests.triton import check as triton


@click.group()
def main() -> None:
    """Measure Sluicegate beside a baseline in the same run."""


@main.command("hit")
@click.option("--connections", default=32, show_default=True)
@click.option("--duration", default=5.0, show_default=True, help="Seconds of each run.")
@click.option("--rounds", default=5, show_default=True, help="Runs of each; the median counts.")
@click.option("--tracing", is_flag=True, help="Measure what tracing costs memory hits instead.")
@click.option("--collectors", is_flag=True, help="Or their latency beside collectors in trouble.")
@click.option("--dialects", is_flag=True, help="Or memory hits of dialects' routes.")
def hit_command(
    *,
    connections: int,
    duration: float,
    rounds: int,
    tracing: bool,
    collectors: bool,
    dialects: bool,
) -> None:
    """Measure cache hits by tier and entry point, beside rivals."""
    if collectors:
        traced_hits.measure_latency(duration=duration, rounds=rounds)
        return
    measure = hit.measure
    if tracing or dialects:
        measure = traced_hits.measure if tracing else dialect_hits.measure
    measure(connections=connections, duration=duration, rounds=rounds)


@main.command("miss")
@click.option("--connections", default=32, show_default=True)
@click.option("--count", default=3000, show_default=True, help="Sentences of each run.")
@click.option("--rounds", default=3, show_default=True, help="Runs of each; the median counts.")
@click.option("--one-core", is_flag=True, help="The model has a core, the rest another.")
@click.option("--two-backends", is_flag=True, help="Serve two regions instead of one.")
def miss_command(
    *, connections: int, count: int, rounds: int, one_core: bool, two_backends: bool
) -> None:
    """Measure requests that run the model."""
    miss.measure(
        connections=connections,
        count=count,
        rounds=rounds,
        one_core=one_core,
        two_backends=two_backends,
    )


@main.command("bulk")
@click.option("--rows", default=30_000, show_default=True, help="Texts of all rounds together.")
@click.option("--rounds", default=3, show_default=True, help="Turns of each; the median counts.")
@click.option("--bare-share", default=1.0, show_default=True, help="Of texts for bare sessions.")
@click.option("--without-model", is_flag=True, help="Measure all that is beside the model.")
def bulk_command(*, rows: int, rounds: int, bare_share: float, without_model: bool) -> None:
    """Measure a bulk job beside bare sessions."""
    bulk.measure(rows=rows, rounds=rounds, bare_share=bare_share, without_model=without_model)


@main.command("dispatch")
@click.option("--count", default=5000, show_default=True, help="Items of each run.")
@click.option("--rounds", default=5, show_default=True, help="Runs of each; the median counts.")
@click.option("--tls", "over_tls", is_flag=True, help="Measure over TLS, too.")
def dispatch_command(*, count: int, rounds: int, over_tls: bool) -> None:
    """Measure the gateway's processor time per missed item."""
    dispatch.measure(count=count, rounds=rounds, over_tls=over_tls)


@main.command("pipeline")
@click.option("--items", default="1,16,256", show_default=True, help="Items of a request.")
@click.option("--count", default=8192, show_default=True, help="Items of each run.")
@click.option("--rounds", default=5, show_default=True, help="Runs of each; the median counts.")
@click.option("--base", default=1e-3, show_default=True, help="Seconds of a batch.")
@click.option("--token", default=1e-6, show_default=True, help="Seconds of each of its tokens.")
@click.option("--topology", type=click.Choice(["one", "gpu"]), default="one", show_default=True)
@click.option("--backends", default=2, show_default=True, help="Of the topology `gpu`.")
def pipeline_command(
    *,
    items: str,
    count: int,
    rounds: int,
    base: float,
    token: float,
    topology: str,
    backends: int,
) -> None:
    """Measure each process's processor time per missed item, with a model that takes none.

    `gpu` has several backends share the device, and computes the cores for 50,000 rows a second.
    """
    pipeline.measure(
        items=tuple(map(int, items.split(","))),
        count=count,
        rounds=rounds,
        device=pipeline.PacedDevice(base=base, token=token),
        backends=backends if topology == "gpu" else 0,
    )


@main.command("precision")
@click.option("--connections", default=32, show_default=True)
@click.option("--count", default=2000, show_default=True, help="Sentences of each run.")
@click.option("--rounds", default=5, show_default=True, help="Runs of each; the median counts.")
def precision_command(*, connections: int, count: int, rounds: int) -> None:
    """Measure bf16 beside fp32 over OpenVINO."""
    precision.measure(connections=connections, count=count, rounds=rounds)


@main.command("threads")
@click.option("--clients", default="1,2,4,8,16,32,64", show_default=True)
@click.option("--duration", default=3.0, show_default=True, help="Seconds of each run.")
@click.option("--rounds", default=3, show_default=True, help="Runs of each; the median counts.")
@click.option("--weigh-only", is_flag=True, help="Only the memory of the sessions.")
def threads_command(*, clients: str, duration: float, rounds: int, weigh_only: bool) -> None:
    """Measure adaptive threads beside fixed ones."""
    if not weigh_only:
        numbers = tuple(map(int, clients.split(",")))
        threads.measure(clients=numbers, duration=duration, rounds=rounds)
    threads.weigh()


@main.command("mixed")
@click.option("--duration", default=10.0, show_default=True, help="Seconds of each run.")
@click.option("--rounds", default=5, show_default=True, help="Runs of each; the median counts.")
def mixed_command(duration: float, rounds: int) -> None:
    """Measure short sentences among long documents, beside batches in order of arrival."""
    mixed.measure(duration=duration, rounds=rounds)


@main.command("rows")
@click.option("--connections", default=64, show_default=True)
@click.option("--count", default=300, show_default=True, help="Zero-shot requests of each run.")
@click.option("--rounds", default=3, show_default=True, help="Runs of each; the median counts.")
def rows_command(*, connections: int, count: int, rounds: int) -> None:
    """Measure requests of many rows beside requests of one row."""
    rows.measure(connections=connections, count=count, rounds=rounds)


@main.command("overload")
@click.option("--duration", default=30.0, show_default=True, help="Seconds at twice the capacity.")
@click.option("--deadline", default=0.5, show_default=True, help="Seconds a caller waits.")
@click.option("--through-gateway", is_flag=True, help="Ask a gateway, not the backend.")
@click.option("--whole", is_flag=True, help="Requests of many items or rows, through a gateway.")
@click.option("--only", type=click.Choice(list(whole_requests.KINDS)), multiple=True)
@click.option("--paced", is_flag=True, help="With --whole: a device that takes time but no core.")
def overload_command(
    *,
    duration: float,
    deadline: float,
    through_gateway: bool,
    whole: bool,
    only: tuple[str, ...],
    paced: bool,
) -> None:
    """Measure a backend at twice its capacity."""
    if whole or only:
        whole_requests.measure(duration=duration, only=only, paced=paced)
    else:
        overload.measure(duration=duration, deadline=deadline, through_gateway=through_gateway)


@main.command("shares")
@click.option("--phase", default=30.0, show_default=True, help="Seconds before and after the swap.")
@click.option("--overload", "times", default=1.3, show_default=True, help="Of what is possible.")
@click.option("--deadline", default=0.5, show_default=True, help="Seconds a caller waits.")
def shares_command(phase: float, times: float, deadline: float) -> None:
    """Measure how two models, loaded ten to one, share a saturated device."""
    shares.measure(phase=phase, overload=times, deadline=deadline)


@main.command("latency")
@click.option("--most", default=12_000.0, show_default=True, help="Requests a second at most.")
@click.option("--duration", default=4.0, show_default=True, help="Seconds of each run.")
@click.option("--rounds", default=5, show_default=True, help="Runs of each; the median counts.")
def latency_command(most: float, duration: float, rounds: int) -> None:
    """Measure the latency of hits at a steady rate, beside LiteLLM."""
    latency.measure(most=most, duration=duration, rounds=rounds)


@main.command("limits")
@click.option("--duration", default=180.0, show_default=True, help="Seconds of each of two runs.")
@click.option("--away", default=10.0, show_default=True, help="Seconds that Redis is dead in one.")
def limits_command(duration: float, away: float) -> None:
    """Check that four workers together keep limits, with Redis and without."""
    limits.measure(duration=duration, away=away)


@main.command("regions")
@click.option("--phase", default=60.0, show_default=True, help="Seconds of each demand.")
@click.option("--lease", default=30.0, show_default=True, help="Seconds a lost region keeps it.")
@click.option("--tenants", default=5, show_default=True)
def regions_command(*, phase: float, lease: float, tenants: int) -> None:
    """Check that gateways in two regions together keep limits, also when one is lost."""
    regions.measure(phase=phase, lease=lease, tenants=tenants)


@main.command("batches")
@click.option("--lines", default=100_000, show_default=True)
@click.option("--rounds", default=6, show_default=True, help="Of latencies alone and beside it.")
def batches_command(*, lines: int, rounds: int) -> None:
    """Measure what a running batch does to other requests."""
    batches.measure(lines=lines, rounds=rounds)


@main.command("memory")
@click.option("--items", default=10_000_000, show_default=True, help="Distinct items put through.")
@click.option("--requests", default=3_000_000, show_default=True, help="Of the Zipf stream.")
@click.option("--universe", default=1_000_000, show_default=True, help="Items of the Zipf stream.")
def memory_command(*, items: int, requests: int, universe: int) -> None:
    """Measure the memory tier: its bound, and its hit ratio beside W-TinyLFU and LRU."""
    memory.measure(items=items, requests=requests, universe=universe)


@main.command("console")
@click.option("--tenants", default=4000, show_default=True)
@click.option("--backends", default=200, show_default=True)
@click.option("--rounds", default=20, show_default=True, help="Requests for each page.")
@click.option("--postgresql", is_flag=True, help="The ledger is in PostgreSQL, not in SQLite.")
def console_command(*, tenants: int, backends: int, rounds: int, postgresql: bool) -> None:
    """Measure the pages of the console; exit 1 where one takes over 300 ms."""
    pages = console.measure(
        tenants=tenants, backends=backends, rounds=rounds, postgresql=postgresql
    )
    click.echo(console.report(pages))
    slow = [page.path for page in pages if max(page.seconds) > console.LIMIT]
    if slow:
        raise click.ClickException(f"over {console.LIMIT * 1e3:.0f} ms: {', '.join(slow)}")


@main.command("hostile")
@click.option("--rate", default=100.0, show_default=True, help="Requests a second.")
@click.option("--seconds", default=10.0, show_default=True, help="Of each run.")
@click.option("--rounds", default=3, show_default=True, help="Runs of each kind.")
def hostile_command(*, rate: float, seconds: float, rounds: int) -> None:
    """Measure a model beside hostile algorithms in the same backend."""
    hostile.measure(rate=rate, seconds=seconds, rounds=rounds)


@main.command("triton")
@click.option("--texts", default=200, show_default=True, help="Compared with our own executor.")
@click.option("--rate", default=40.0, show_default=True, help="Requests a second under faults.")
@click.option("--quiet", default=4.0, show_default=True, help="Seconds before and after a fault.")
@click.option("--away", default=4.0, show_default=True, help="Seconds that Triton is away.")
@click.option("--repeats", default=30, show_default=True, help="Batches of each shape on the wire.")
def triton_command(*, texts: int, rate: float, quiet: float, away: float, repeats: int) -> None:
    """Check a real Triton as a region of the gateway."""
    triton.check(texts=texts, rate=rate, quiet=quiet, away=away, repeats=repeats)


main.add_command(dashboards_command)
main.add_command(scaling_command)
main.add_command(faults_command)
main.add_command(fuzz_amplification_command)
main.add_command(fuzz_api_command)
main.add_command(fuzz_dialects_command)
main.add_command(fuzz_http_command)
main.add_command(gpu_command)
main.add_command(growth_command)
main.add_command(peers_command)
main.add_command(simulate_command)

if __name__ == "__main__":
    main()
