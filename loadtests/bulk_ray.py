"""Measures a bulk job on a Ray cluster of one node beside the plain command, in turns.

Runs in an environment that has Ray: `make bench NAME=bulk-ray`. Both have the same cores, rows and
parts, and no two rows are equal.
"""

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import linear_regression, median

import click
import msgspec

from loadtests.bulk import write_texts
from loadtests.demo import demo_models
from loadtests.options import rounds
from loadtests.ray_cluster import running_cluster
from loadtests.report import heading, print_table
from loadtests.turns import in_turns, paired
from loadtests.workload import sentences
from testing.process_times import ProcessTimes

_ENDS_WITHIN = 3600.0


class JobRate(msgspec.Struct, frozen=True, kw_only=True):
    """The speed of a job.

    `steady` is the rows a second while the job finished parts, and `processor` the processor time
    of a row in all processes. `whole` and `whole_processor` also count the start of the job.
    """

    steady: float
    processor: float
    whole: float
    whole_processor: float
    first_part: float


@click.command()
@click.option("--rows", default=160_000, help="Rows of a job.")
@click.option("--part-rows", default=8192, help="Rows of a part.")
@rounds(3)
@click.option("--model", default="minilm", help="A demo model.")
@click.option("--task", default="embed", help="Of the model.")
@click.option("--provider", default="cpu", help="`paced`: one that takes none.")
def measure(
    *, rows: int, part_rows: int, rounds: int, model: str, task: str, provider: str
) -> None:
    """Run jobs of both kinds in turns, and print their rates."""
    if provider == "paced":
        for name in ("BASE", "TOKEN"):
            os.environ.setdefault(f"SLUICEGATE_BACKEND_PACED_{name}", "0")
    # Ray gives way to all else on a machine where the plain command does not.
    os.environ.setdefault("RAY_worker_niceness", "0")
    with demo_models() as models:
        source = write_texts(models.parent / "in.parquet", sentences(rows, seed=4), group=65_536)
        command = [
            *(sys.executable, "-P", "-m", "bulk", "--models", str(models), "--model", model),
            *("--task", task, "--part-rows", str(part_rows), "--provider", provider, str(source)),
        ]
        outputs = (models.parent / f"out-{number}" for number in itertools.count())

        def run(kind: str) -> JobRate:
            output = next(outputs)
            with _cluster(kind) as more:
                found = _run_job([*command, str(output), *more], output, rows, part_rows)
            print(f"{kind}: {_shown(found)}", flush=True)
            return found

        _show(in_turns({kind: partial(run, kind) for kind in ("plain", "ray")}, rounds))


@contextmanager
def _cluster(kind: str) -> Iterator[list[str]]:
    """Start a cluster of one node, where the kind of job needs it; yield the job's options."""
    if kind == "plain":
        yield []
        return
    started = time.monotonic()
    with running_cluster(0, head_cores=os.cpu_count() or 1) as cluster:
        print(f"the cluster is there after {time.monotonic() - started:.1f} s", flush=True)
        yield ["--ray", cluster.address]


def _run_job(command: list[str], output: Path, rows: int, part_rows: int) -> JobRate:
    """Run a job, and read its rate off the times at which its parts appeared."""
    began = time.time()
    with ProcessTimes(os.getpid(), without={os.getpid()}) as times:
        if subprocess.run(command, timeout=_ENDS_WITHIN, check=False).returncode != 0:
            sys.exit("the job failed")
        whole = time.time() - began
    ends = sorted(path.stat().st_mtime for path in output.glob("part-*"))
    done = [float(min(rows, part_rows * number)) for number in range(1, len(ends) + 1)]
    return JobRate(
        steady=linear_regression(ends, done).slope,
        processor=linear_regression(done, [times.until(end) for end in ends]).slope,
        whole=rows / whole,
        whole_processor=times.until(began + whole) / rows,
        first_part=ends[0] - began,
    )


def _shown(rate: JobRate) -> str:
    return (
        f"while parts were finished {rate.steady:,.0f} rows/s,"
        f" {rate.processor * 1e6:,.0f} µs of processors a row;"
        f" with its start {rate.whole:,.0f} and {rate.whole_processor * 1e6:,.0f};"
        f" first part after {rate.first_part:.1f} s"
    )


def _show(rates: dict[str, list[JobRate]]) -> None:
    heading("One node of Ray beside the plain command")
    columns = ("what", "rows/s", "of plain", "µs of processors a row", "of plain", "first part")
    plain = rates["plain"]
    print_table(
        columns,
        [
            (
                *(kind, f"{median([each.steady for each in own]):,.0f}"),
                f"{paired([each.steady for each in own], [each.steady for each in plain]):.3f}",
                f"{median([each.processor for each in own]) * 1e6:,.0f}",
                f"{paired([e.processor for e in plain], [e.processor for e in own]):.3f}",
                f"{median([each.first_part for each in own]):.1f} s",
            )
            for kind, own in rates.items()
        ],
    )
