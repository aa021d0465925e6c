"""Serves `sentiment` under Triton: writes the model's configuration and starts the server."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

from loadtests.peers.configuration import SCRATCH, PeerConfiguration
from loadtests.peers.triton.launch import become_server

_CONFIG = """
name: "sentiment"
backend: "python"
max_batch_size: {batch}
input [{{ name: "text", data_type: TYPE_STRING, dims: [1] }}]
output [{{ name: "scores", data_type: TYPE_FP32, dims: [2] }}]
instance_group [{{ kind: KIND_CPU, count: {workers} }}]
"""
_BATCHING = "dynamic_batching {{ max_queue_delay_microseconds: {delay} }}\n"


def config(way: PeerConfiguration) -> str:
    """Return the model's `config.pbtxt`."""
    batching = _BATCHING.format(delay=round(way.delay * 1e6)) if way.batch > 1 else ""
    return _CONFIG.format(batch=way.batch, workers=way.workers) + batching


def main() -> None:
    """Serve on the port of the first argument."""
    repository = Path(tempfile.mkdtemp(prefix="peer-triton-", dir=os.environ[SCRATCH]))
    shutil.copytree(Path(__file__).parent / "sentiment", repository / "sentiment")
    # The backend reads no PYTHONPATH: what a model imports lies beside it.
    (repository / "sentiment" / "1" / "loadtests").symlink_to(Path(__file__).parents[2])
    (repository / "sentiment" / "config.pbtxt").write_text(config(PeerConfiguration.read()))
    become_server(repository, port=int(sys.argv[1]), scratch=repository.parent)


if __name__ == "__main__":
    main()
