"""Kills a node of a Ray cluster under a bulk job, and compares with jobs that nothing disturbs.

Runs in an environment that has Ray: `make chaos-ray`. The cluster is three nodes of one core on
this machine.
"""

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

from backends.model_tools.demo.build import build_demo_models
from loadtests.chaos_bulk import digest, write_input
from loadtests.ray_cluster import running_cluster
from testing.waiting import wait_until

_NODES = 3
_LONGEST = 3600.0


@click.command()
@click.option("--rows", default=20_000, show_default=True, help="Rows of the job.")
@click.option("--part-rows", default=1000, show_default=True, help="Rows of a part.")
@click.option("--seed", default=1, show_default=True, help="Of the rows.")
@click.option("--model", default="minilm", show_default=True, help="A demo model.")
@click.option("--task", default="embed", show_default=True, help="Of the model.")
def main(*, rows: int, part_rows: int, seed: int, model: str, task: str) -> None:
    """Run a job on a cluster three times: undisturbed, with a node lost, and begun anew."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        build_demo_models(root / "models", print)
        write_input(root / "in.jsonl", rows, random.Random(seed))
        parts = -(-rows // part_rows)
        with running_cluster(_NODES) as cluster:
            job = _Job(root, cluster.address, part_rows, model=model, task=task)
            started = time.monotonic()
            job.finish(job.start("undisturbed"))
            print(f"undisturbed: {time.monotonic() - started:.1f} s")
            driver = job.start("resumed")
            job.wait_for("resumed", parts // 3)
            driver.kill()
            driver.wait()
            print(f"driver killed: {job.done('resumed')} of {parts} parts are whole")
            job.finish(job.start("resumed"))
            driver = job.start("lost")
            job.wait_for("lost", parts // 3)
            cluster.kill_node()
            print(f"node killed: {job.done('lost')} of {parts} parts are whole")
            job.finish(driver)
        digests = {name: digest(root / name) for name in ("undisturbed", "resumed", "lost")}
        print(digests)
        if len(set(digests.values())) != 1:
            sys.exit("the outputs differ")
        print(f"equal: {rows:,} rows in parts of {part_rows:,}")


class _Job:
    """Starts a job as a user does, with an output of its own each time."""

    def __init__(self, root: Path, address: str, part_rows: int, *, model: str, task: str) -> None:
        self._root = root
        self._options = [
            *("--model", model, "--task", task, "--models", str(root / "models")),
            *("--part-rows", str(part_rows), "--keep", "number", "--ray", address),
        ]

    def start(self, output: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-P", "-m", "bulk", *self._options]
        return subprocess.Popen([*command, str(self._root / "in.jsonl"), str(self._root / output)])

    def finish(self, process: "subprocess.Popen[bytes]") -> None:
        if process.wait(_LONGEST) != 0:
            sys.exit("the job failed")

    def done(self, output: str) -> int:
        return len(list((self._root / output).glob("part-*")))

    def wait_for(self, output: str, parts: int) -> None:
        wait_until(lambda: self.done(output) >= parts, within=_LONGEST, every=0.1)


if __name__ == "__main__":
    main()
