"""`sentiment` under Triton: writes the model's configuration, becomes the wheel's server."""

import os
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path

from loadtests.peers.way import SCRATCH, Way

_CONFIG = """
name: "sentiment"
backend: "python"
max_batch_size: {batch}
input [{{ name: "text", data_type: TYPE_STRING, dims: [1] }}]
output [{{ name: "scores", data_type: TYPE_FP32, dims: [2] }}]
instance_group [{{ kind: KIND_CPU, count: {workers} }}]
"""
_BATCHING = "dynamic_batching {{ max_queue_delay_microseconds: {delay} }}\n"


def config(way: Way) -> str:
    """Return the model's `config.pbtxt`."""
    batching = _BATCHING.format(delay=round(way.delay * 1e6)) if way.batch > 1 else ""
    return _CONFIG.format(batch=way.batch, workers=way.workers) + batching


def main() -> None:
    """Serve on the port of the first argument."""
    packages = sysconfig.get_paths()["purelib"]
    server = Path(packages) / "pytriton" / "tritonserver"
    repository = Path(tempfile.mkdtemp(prefix="peer-triton-", dir=os.environ[SCRATCH]))
    shutil.copytree(Path(__file__).parent / "sentiment", repository / "sentiment")
    # The backend reads no PYTHONPATH: what a model imports lies beside it.
    (repository / "sentiment" / "1" / "loadtests").symlink_to(Path(__file__).parents[2])
    (repository / "sentiment" / "config.pbtxt").write_text(config(Way.read()))
    # The stub is built for each Python, and takes the packages of the first one on the path.
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
        *("--http-address", "127.0.0.1", "--http-port", sys.argv[1]),
        *("--allow-grpc", "false", "--allow-metrics", "false"),
    ]
    os.execv(command[0], command)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main()
