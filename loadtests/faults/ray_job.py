"""Kills a driver and a node of a Ray cluster under bulk jobs; prints the digests of their outputs.

Runs in an environment that has Ray. The cluster is three nodes of one core on this machine.
"""

import json
import random
import subprocess
import tempfile
from pathlib import Path

from backends.model_tools.demo.build import build_demo_models
from loadtests.faults.bulk_jobs import PART_ROWS, digest, finish, start_job, write_input
from loadtests.ray_cluster import running_cluster
from testing.waiting import wait_until

_NODES, _ROWS = 3, 20_000
_PARTS = _ROWS // PART_ROWS
_LONGEST = 900.0


def main() -> None:
    """Run a job three times: undisturbed, with its driver killed, and with a node killed."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        build_demo_models(root / "models", lambda _: None)
        write_input(root / "in.jsonl", _ROWS, random.Random(1))
        with running_cluster(_NODES) as cluster:

            def start(output: str) -> "subprocess.Popen[bytes]":
                return start_job(root, output, "--ray", cluster.address)

            finish(start("undisturbed"))
            driver = start("resumed")
            _wait_for(root / "resumed")
            driver.kill()
            driver.wait()
            finish(start("resumed"))
            driver = start("lost")
            _wait_for(root / "lost")
            cluster.kill_node()
            finish(driver)
        digests = {name: digest(root / name) for name in ("undisturbed", "resumed", "lost")}
    print(json.dumps({"rows": _ROWS, "digests": digests}))


def _wait_for(output: Path) -> None:
    """Return when a third of the parts is whole."""
    wait_until(lambda: len(list(output.glob("part-*"))) >= _PARTS // 3, within=_LONGEST, every=0.1)


if __name__ == "__main__":
    main()
