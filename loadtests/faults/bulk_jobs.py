"""Kills bulk jobs, and compares their output with the output of an undisturbed run.

The module is also a program for an environment that has Ray. The program runs bulk jobs on a Ray
cluster of three nodes with one core each. It kills the driver of one job and a node under another
job, and fails if their outputs differ from the output of an undisturbed job.
"""

import hashlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from loadtests.faults.catalogue import Fault, Outcome
from loadtests.ray_cluster import running_cluster
from loadtests.workload import sentences
from sluicegate.backends.model_tools.demo.build import build_demo_models
from sluicegate.bulk.output import ERRORS, JOB, MANIFEST
from testing.waiting import wait_until

_ROWS, _PART_ROWS, _KILLS = 10_000, 1000, 10
_NODES, _RAY_ROWS = 3, 20_000
_SPREAD = 10.0
"""All kills come within this multiple of the time that the undisturbed run took."""
_ROOT = Path(__file__).parents[2]
_RAY_PYTHON = _ROOT / ".venv-ray/bin/python"


def _write_input(path: Path, rows: int, chooser: random.Random) -> None:
    """Write rows: some repeat others, some are empty, and some are not JSON."""
    texts = sentences(max(1, rows * 2 // 3), seed=6)
    with path.open("wb") as file:
        for number in range(rows):
            text = texts[number] if number < len(texts) // 2 else chooser.choice(texts)
            row = {"text": "" if number % 997 == 3 else text, "number": number}
            file.write(msgspec.json.encode(row) + b"\n")
            if number % 1499 == 5:
                file.write(b"{no json\n")


def digest(folder: Path) -> str:
    """Return a digest of an output folder: its rows, failed rows and manifest.

    Raises:
        RuntimeError: the folder has other files.
    """
    files = [*sorted(folder.glob("part-*")), folder / ERRORS, folder / MANIFEST]
    if left := set(folder.iterdir()) - {*files, folder / JOB}:
        raise RuntimeError(f"something is left over: {left}")
    return hashlib.sha256(b"\n".join(file.read_bytes() for file in files)).hexdigest()


def _kill_job() -> Outcome:
    chooser = random.Random(time.time())
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        build_demo_models(root / "models", lambda _: None)
        _write_input(root / "in.jsonl", _ROWS, chooser)
        started = time.monotonic()
        _finish(_start(root, "undisturbed"))
        whole = time.monotonic() - started
        done, digests = 0, {digest(root / "undisturbed")}
        while done < _KILLS:
            process = _start(root, "killed")
            try:
                process.wait(chooser.uniform(0.3, whole * _SPREAD / _KILLS))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
                done += 1
            else:  # so that kills also happen near the end of the job
                digests.add(digest(root / "killed"))
                shutil.rmtree(root / "killed")
        _finish(_start(root, "killed"))
        digests.add(digest(root / "killed"))
    figures = {"rows": _ROWS, "kills": done, "undisturbed_seconds": round(whole, 1)}
    return figures, ["the outputs differ"] if len(digests) > 1 else []


def _start(root: Path, output: str, *options: str) -> "subprocess.Popen[bytes]":
    """Start a job that reads `root/in.jsonl` and writes to the folder `root/output`."""
    command = [
        *(sys.executable, "-P", "-m", "sluicegate.bulk", "--model", "minilm", "--task", "embed"),
        *("--models", str(root / "models"), "--part-rows", str(_PART_ROWS), "--keep", "number"),
        *(*options, str(root / "in.jsonl"), str(root / output)),
    ]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _finish(job: "subprocess.Popen[bytes]") -> None:
    if job.wait() != 0:
        raise RuntimeError("a job failed")


def _kill_ray() -> Outcome:
    """Run this module in the environment that has Ray."""
    if not _RAY_PYTHON.exists():
        return {}, ["Ray is not installed: `make .venv-ray/.installed` installs it"]
    command = [str(_RAY_PYTHON), "-P", "-m", "loadtests.faults.bulk_jobs"]
    done = subprocess.run(command, cwd=_ROOT, check=False)
    return {"rows": _RAY_ROWS}, ["the outputs differ, or a job failed"] if done.returncode else []


def _kill_on_ray() -> None:
    """Run a job three times: undisturbed, with its driver killed, and with a node killed."""
    with tempfile.TemporaryDirectory() as folder, running_cluster(_NODES) as cluster:
        root = Path(folder)
        build_demo_models(root / "models", lambda _: None)
        _write_input(root / "in.jsonl", _RAY_ROWS, random.Random(1))

        def start(output: str, *, until_done: float) -> "subprocess.Popen[bytes]":
            """Start a job. Return it when the fraction `until_done` of its parts is done."""
            job, folder = _start(root, output, "--ray", cluster.address), root / output
            least = until_done * _RAY_ROWS / _PART_ROWS
            wait_until(lambda: len(list(folder.glob("part-*"))) >= least, within=900.0)
            return job

        _finish(start("undisturbed", until_done=0.0))
        driver = start("resumed", until_done=0.3)
        driver.kill()
        driver.wait()
        _finish(start("resumed", until_done=0.0))
        driver = start("lost", until_done=0.3)
        cluster.kill_node()
        _finish(driver)
        if len({digest(root / name) for name in ("undisturbed", "resumed", "lost")}) > 1:
            raise RuntimeError("the outputs differ")


FAULTS = (
    Fault("bulk", f"kills a bulk job {_KILLS} times, and compares its output with an undisturbed "
          "run's", "the job is started again", play=_kill_job),
    Fault("ray", "kills the driver of a bulk job on a Ray cluster, and a node under another job",
          "the driver is started again; the node stays away", play=_kill_ray),
)  # fmt: skip

if __name__ == "__main__":
    _kill_on_ray()
