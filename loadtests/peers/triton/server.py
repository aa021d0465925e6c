"""Serves a model under Triton: writes the model's configuration and starts the server."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

from loadtests.peers.configuration import SCRATCH, TASK, PeerConfiguration
from loadtests.peers.triton.launch import become_server

_CONFIG = """
name: "model"
backend: "python"
max_batch_size: {batch}
input [{{ name: "text", data_type: TYPE_STRING, dims: [1] }}]
output [{{ name: "values", data_type: TYPE_FP32, dims: [{size}] }}]
instance_group [{{ kind: KIND_CPU, count: {workers} }}]
"""
_BATCHING = "dynamic_batching {{ max_queue_delay_microseconds: {delay} }}\n"


def config(way: PeerConfiguration, *, size: int) -> str:
    """Return the model's `config.pbtxt`; the model gives `size` values for a text."""
    batching = _BATCHING.format(delay=round(way.delay * 1e6)) if way.batch > 1 else ""
    return _CONFIG.format(batch=way.batch, workers=way.workers, size=size) + batching


def main() -> None:
    """Serve on the port that the first argument gives."""
    repository = Path(tempfile.mkdtemp(prefix="peer-triton-", dir=os.environ[SCRATCH]))
    shutil.copytree(Path(__file__).parent / "model", repository / "model")
    # Triton's backend ignores PYTHONPATH, so the modules that a model imports must lie beside it.
    (repository / "model" / "1" / "loadtests").symlink_to(Path(__file__).parents[2])
    (repository / "model" / "config.pbtxt").write_text(
        config(PeerConfiguration.read(), size=2 if os.environ[TASK] == "classify" else 384)
    )
    become_server(repository, port=int(sys.argv[1]), scratch=repository.parent)


if __name__ == "__main__":
    main()
