"""Kills a bulk job again and again, and compares its output with that of an undisturbed run."""

import hashlib
import os
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
from loadtests.workload import sentences

_PART_ROWS = 1000


def measure(*, rows: int, kills: int, seed: int, runs: float, model: str, task: str) -> None:
    """Run a job undisturbed, and one that is killed; exit with 1 where they differ.

    All kills come within `runs` times the undisturbed time: with 2, most within one run.
    """
    chooser = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        build_demo_models(root / "models", print)
        source = write_input(root / "in.jsonl", rows, chooser)

        def start(target: str) -> "subprocess.Popen[bytes]":
            return _start(root, source, target, model=model, task=task)

        started = time.monotonic()
        if start("undisturbed").wait() != 0:
            sys.exit("the undisturbed run failed")
        whole = time.monotonic() - started
        print(f"undisturbed: {rows:,} rows in {whole:.0f} s", flush=True)
        done = 0
        while done < kills:
            process = start("killed")
            try:
                process.wait(chooser.uniform(0.3, whole * runs / kills))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
                done += 1
                parts = len(list((root / "killed").glob("part-*")))
                print(f"kill {done}: {parts} parts are whole", flush=True)
            else:
                # So that kills are as likely at its end; what it wrote is compared, too.
                _compare(root)
                shutil.rmtree(root / "killed")
        if start("killed").wait() != 0:
            sys.exit("the last run failed")
        _compare(root)
        print(f"equal after {kills} kills: {rows:,} rows in parts of {_PART_ROWS:,}")


def _compare(root: Path) -> None:
    digests = {name: digest(root / name) for name in ("undisturbed", "killed")}
    print(digests)
    if len(set(digests.values())) != 1:
        sys.exit("the outputs differ")


def write_input(path: Path, rows: int, chooser: random.Random) -> Path:
    """Write rows of which a third repeat others, and some are none."""
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
    """Return a digest of the rows of an output, those that failed, and what it says of itself."""
    files = [*sorted(folder.glob("part-*")), folder / ERRORS, folder / MANIFEST]
    found = hashlib.blake2b(b"\n".join(file.read_bytes() for file in files), digest_size=8)
    left = {file.name for file in folder.iterdir()} - {ERRORS, MANIFEST, JOB}
    if any(not name.startswith("part-") for name in left):
        sys.exit(f"something is left over: {left}")
    return found.hexdigest()


def _start(
    root: Path, source: Path, target: str, *, model: str, task: str
) -> "subprocess.Popen[bytes]":
    command = [
        *(sys.executable, "-P", "-m", "bulk", "--model", model, "--task", task),
        *("--models", str(root / "models"), "--part-rows", str(_PART_ROWS)),
        *("--keep", "number", str(source), str(root / target)),
    ]
    return subprocess.Popen(command, env=os.environ, stderr=subprocess.DEVNULL)
