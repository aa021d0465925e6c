"""Replaces this process by the Triton server of the `nvidia-pytriton` wheel.

This program uses only the standard library, because it runs without the project's packages.
"""

import os
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import NoReturn


def become_server(repository: Path, *, port: int, scratch: Path) -> NoReturn:
    """Serve the models of `repository` over HTTP on a loopback port."""
    packages = sysconfig.get_paths()["purelib"]
    server = Path(packages) / "pytriton" / "tritonserver"
    # The stub is built for each Python version, and takes the packages of the first Python on the
    # path.
    stubs = server / "python_backend_stubs" / f"{sys.version_info.major}.{sys.version_info.minor}"
    backends = scratch / "backends"
    shutil.copytree(server / "backends", backends, dirs_exist_ok=True)
    shutil.copy(stubs / "triton_python_backend_stub", backends / "python")
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    libraries = (sysconfig.get_config_var("LIBDIR"), f"{packages}/nvidia_pytriton.libs")
    os.environ["LD_LIBRARY_PATH"] = ":".join(libraries)
    command = [
        str(server / "bin" / "tritonserver"),
        *("--model-repository", str(repository), "--backend-directory", str(backends)),
        *("--http-address", "127.0.0.1", "--http-port", str(port)),
        *("--allow-grpc", "false", "--allow-metrics", "false"),
    ]
    os.execv(command[0], command)  # noqa: S606 - it needs no shell
