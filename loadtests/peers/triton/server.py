"""Becomes the Triton server of the `nvidia-pytriton` wheel: `python server.py PORT [REPOSITORY]`.

Without a repository, it serves the model of the benchmark. This program uses only the standard
library, because it runs without the project's packages.
"""

import os
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import NoReturn

from loadtests.peers.configuration import SCRATCH, TASK, PeerConfiguration

_CONFIG = """
name: "model"
backend: "python"
max_batch_size: {batch}
input [{{ name: "text", data_type: TYPE_STRING, dims: [1] }}]
output [{{ name: "values", data_type: TYPE_FP32, dims: [{size}] }}]
instance_group [{{ kind: KIND_CPU, count: {workers} }}]
"""
_BATCHING = "dynamic_batching {{ max_queue_delay_microseconds: {delay} }}\n"


def _write_repository() -> Path:
    """Write the benchmark's model, in the configuration of this process."""
    way, size = PeerConfiguration.read(), 2 if os.environ[TASK] == "classify" else 384
    repository = Path(tempfile.mkdtemp(prefix="peer-triton-", dir=os.environ[SCRATCH]))
    model = Path(shutil.copytree(Path(__file__).parent / "model", repository / "model"))
    # Triton's backend ignores PYTHONPATH, so the modules that a model imports must lie beside it.
    (model / "1" / "loadtests").symlink_to(Path(__file__).parents[2])
    config = _CONFIG.format(batch=way.batch, workers=way.workers, size=size)
    if way.batch > 1:
        config += _BATCHING.format(delay=round(way.delay * 1e6))
    (model / "config.pbtxt").write_text(config)
    return repository


def _become_server(port: str, repository: Path) -> NoReturn:
    """Serve the models of `repository` over HTTP on a loopback port."""
    packages = sysconfig.get_paths()["purelib"]
    server = Path(packages) / "pytriton" / "tritonserver"
    # The stub is built for each Python version, and takes the packages of the first Python on the
    # path.
    stubs = server / "python_backend_stubs" / f"{sys.version_info.major}.{sys.version_info.minor}"
    backends = repository.parent / "backends"
    shutil.copytree(server / "backends", backends, dirs_exist_ok=True)
    shutil.copy(stubs / "triton_python_backend_stub", backends / "python")
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    libraries = (sysconfig.get_config_var("LIBDIR"), f"{packages}/nvidia_pytriton.libs")
    os.environ["LD_LIBRARY_PATH"] = ":".join(libraries)
    command = [
        str(server / "bin" / "tritonserver"),
        *("--model-repository", str(repository), "--backend-directory", str(backends)),
        *("--http-address", "127.0.0.1", "--http-port", port),
        *("--allow-grpc", "false", "--allow-metrics", "false"),
    ]
    os.execv(command[0], command)  # noqa: S606 - it needs no shell


if __name__ == "__main__":
    _become_server(sys.argv[1], Path(sys.argv[2]) if sys.argv[2:] else _write_repository())
