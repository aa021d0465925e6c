"""Kills bulk jobs, and compares their output with the output of an undisturbed run."""

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

from backends.model_tools.demo.build import build_demo_models
from bulk.output import ERRORS, JOB, MANIFEST
from loadtests.faults.catalogue import Fault, Outcome
from loadtests.faults.topology import TopologyError
from loadtests.workload import sentences

_ROWS, PART_ROWS, _KILLS = 10_000, 1000, 10
_SPREAD = 10.0
"""All kills come within this many times the duration of the undisturbed run."""
_ROOT = Path(__file__).parents[2]
_RAY_PYTHON = _ROOT / ".venv-ray/bin/python"


def write_input(path: Path, rows: int, chooser: random.Random) -> Path:
    """Write rows: some repeat others, some are empty, and some are not JSON."""
    texts = sentences(max(1, rows * 2 // 3), seed=6)
    with path.open("wb") as file:
        for number in range(rows):
            text = texts[number] if number < len(texts) // 2 else chooser.choice(texts)
            row = {"text": "" if number % 997 == 3 else text, "number": number}
            file.write(msgspec.json.encode(row) + b"\n")
            if number % 1499 == 5:
                file.write(b"{no json\n")
    return path


def digest(folder: Path) -> str:
    """Return a digest of an output folder: its rows, failed rows and manifest.

    Raises:
        TopologyError: something else is left in the folder.
    """
    files = [*sorted(folder.glob("part-*")), folder / ERRORS, folder / MANIFEST]
    found = hashlib.blake2b(b"\n".join(file.read_bytes() for file in files), digest_size=8)
    left = {file.name for file in folder.iterdir()} - {ERRORS, MANIFEST, JOB}
    if any(not name.startswith("part-") for name in left):
        raise TopologyError(f"something is left over: {left}")
    return found.hexdigest()


def _kill_job() -> Outcome:
    chooser = random.Random(time.time())
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        build_demo_models(root / "models", lambda _: None)
        write_input(root / "in.jsonl", _ROWS, chooser)
        started = time.monotonic()
        finish(start_job(root, "undisturbed"))
        whole = time.monotonic() - started
        done, digests = 0, {digest(root / "undisturbed")}
        while done < _KILLS:
            process = start_job(root, "killed")
            try:
                process.wait(chooser.uniform(0.3, whole * _SPREAD / _KILLS))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
                done += 1
            else:  # so that kills are as likely at its end
                digests.add(digest(root / "killed"))
                shutil.rmtree(root / "killed")
        finish(start_job(root, "killed"))
        digests.add(digest(root / "killed"))
    figures = {"rows": _ROWS, "kills": done, "undisturbed_seconds": round(whole, 1)}
    return figures, ["the outputs differ"] if len(digests) > 1 else []


def start_job(root: Path, output: str, *options: str) -> "subprocess.Popen[bytes]":
    """Start a job that reads `root/in.jsonl` and writes to the folder `output` in `root`."""
    command = [
        *(sys.executable, "-P", "-m", "bulk", "--model", "minilm", "--task", "embed"),
        *("--models", str(root / "models"), "--part-rows", str(PART_ROWS), "--keep", "number"),
        *(*options, str(root / "in.jsonl"), str(root / output)),
    ]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def finish(job: "subprocess.Popen[bytes]") -> None:
    """Wait for a job.

    Raises:
        TopologyError: the job failed.
    """
    if job.wait() != 0:
        raise TopologyError("a job failed")


def _kill_ray() -> Outcome:
    """Run `loadtests.faults.ray_job` in the environment that has Ray."""
    if not _RAY_PYTHON.exists():
        return {}, ["Ray is not installed: `make .venv-ray/.installed` installs it"]
    command = [str(_RAY_PYTHON), "-P", "-m", "loadtests.faults.ray_job"]
    done = subprocess.run(command, cwd=_ROOT, stdout=subprocess.PIPE, check=False)
    *_, last = done.stdout.splitlines() or [b"{}"]
    figures = msgspec.json.decode(last) if done.returncode == 0 else {}
    digests = set(figures.get("digests", {}).values())
    return figures, [] if len(digests) == 1 else ["the outputs differ, or a job failed"]


FAULTS = (
    Fault(
        name="bulk",
        what=f"kills a bulk job {_KILLS} times, and compares its output with an undisturbed run's",
        undo="the job is started again",
        play=_kill_job,
    ),
    Fault(
        name="ray",
        what="kills the driver of a bulk job on a Ray cluster, and a node under another job",
        undo="the driver is started again; the node stays away",
        play=_kill_ray,
    ),
)
