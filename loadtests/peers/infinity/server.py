"""Serves a model under Infinity: writes the model, then replaces itself by Infinity's command."""

import os
import shlex
import sys
from pathlib import Path

from loadtests.peers.configuration import SCRATCH, TASK, PeerConfiguration
from loadtests.peers.infinity.checkpoints import checkpoint, exported


def main() -> None:
    """Serve on the port that the first argument gives."""
    way, task = PeerConfiguration.read(), os.environ[TASK]
    # Infinity finds the graph of a local model only if the model is named `.`.
    os.chdir(exported(task) if "optimum" in way.options else checkpoint(task))
    os.environ |= {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
    os.environ |= {"HF_HOME": os.environ[SCRATCH], "OMP_NUM_THREADS": str(way.threads)}
    program = Path(sys.executable).with_name("infinity_emb")
    command = [
        *(str(program), "v2", "--model-id", ".", "--served-model-name", "model"),
        *("--device", "cpu", "--batch-size", str(way.batch), "--no-model-warmup"),
        *("--host", "127.0.0.1", "--port", sys.argv[1], "--log-level", "warning"),
        *("--pooling-method", "mean"),  # because one of the engines has another default
        *shlex.split(way.options),
    ]
    os.execv(command[0], command)  # noqa: S606 - it needs no shell


if __name__ == "__main__":
    main()
