"""Kills a driver and a node of a Ray cluster under bulk jobs; prints the digests of their outputs.

Runs in an environment that has Ray. The cluster is three nodes of one core on this machine.
"""

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from backends.model_tools.demo.build import build_demo_models
from loadtests.faults.bulk_jobs import digest, write_input
from loadtests.ray_cluster import running_cluster
from testing.waiting import wait_until

_NODES, _ROWS, _PART_ROWS = 3, 20_000, 1000
_PARTS = _ROWS // _PART_ROWS
_LONGEST = 900.0


def main() -> None:
    """Run a job three times: undisturbed, with its driver killed, and with a node killed."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        build_demo_models(root / "models", lambda _: None)
        write_input(root / "in.jsonl", _ROWS, random.Random(1))
        with running_cluster(_NODES) as cluster:
            _finish(_start(root, cluster.address, "undisturbed"))
            driver = _start(root, cluster.address, "resumed")
            _wait_for(root / "resumed")
            driver.kill()
            driver.wait()
            _finish(_start(root, cluster.address, "resumed"))
            driver = _start(root, cluster.address, "lost")
            _wait_for(root / "lost")
            cluster.kill_node()
            _finish(driver)
        digests = {name: digest(root / name) for name in ("undisturbed", "resumed", "lost")}
    print(json.dumps({"rows": _ROWS, "digests": digests}))


def _start(root: Path, address: str, output: str) -> "subprocess.Popen[bytes]":
    command = [
        *(sys.executable, "-P", "-m", "bulk", "--model", "minilm", "--task", "embed"),
        *("--models", str(root / "models"), "--part-rows", str(_PART_ROWS), "--keep", "number"),
        *("--ray", address, str(root / "in.jsonl"), str(root / output)),
    ]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def _finish(job: "subprocess.Popen[bytes]") -> None:
    if job.wait(_LONGEST) != 0:
        sys.exit("the job failed")


def _wait_for(output: Path) -> None:
    """Return when a third of the parts is whole."""
    wait_until(lambda: len(list(output.glob("part-*"))) >= _PARTS // 3, within=_LONGEST, every=0.1)


if __name__ == "__main__":
    main()
