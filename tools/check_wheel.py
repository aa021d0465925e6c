"""Installs the wheel into an empty environment, starts the product outside a clone, and calls it.

`python -m tools.check_wheel` needs a package index and takes a few minutes.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import hatchling.build

from testing.ports import free_port

_KEY = "sk-of-the-check-of-the-wheel"
_START = 180.0
_STOP = 60.0
_CALL = (
    "from sluicegate import Sluicegate; client = Sluicegate();"
    " print(client.classify('sentiment', ['a gorgeous, witty movie']).results[0].labels[0])"
)
# The call needs no generated classes, because its messages are simple: `ready` is field 1.
_RPC_CALL = (
    "import sys, grpc; channel = grpc.insecure_channel(sys.argv[1]);"
    " method = channel.unary_unary('/inference.GRPCInferenceService/ServerReady');"
    " assert method(b'', timeout=60) == bytes([8, 1])"
)


def main() -> int:
    """Run all steps and print each; return 0 if they succeed."""
    with tempfile.TemporaryDirectory(prefix="sluicegate-wheel-") as name:
        root = Path(name)
        _say("build the wheel")
        wheel = root / hatchling.build.build_wheel(name)
        _say("build the demo models, in place of a customer's models")
        models = root / "models"
        demo = (
            sys.executable,
            "-m",
            "sluicegate.backends.model_tools.demo",
            "--output",
            str(models),
        )
        subprocess.run(demo, check=True, stdout=subprocess.DEVNULL)
        _say(f"install {wheel.name}[up] into an empty environment")
        venv.create(root / "environment", with_pip=True)
        bin_folder = root / "environment" / "bin"
        pip = (str(bin_folder / "pip"), "--disable-pip-version-check", "--no-input", "install")
        subprocess.run((*pip, "--quiet", f"{wheel}[up]"), check=True)
        folder = root / "empty"
        folder.mkdir()
        url, grpc_port = f"http://127.0.0.1:{free_port()}", free_port()
        with _up(bin_folder / "sluicegate", folder, models, url, grpc_port):
            _say("call the readiness method over gRPC")
            rpc = (str(bin_folder / "python"), "-c", _RPC_CALL, f"127.0.0.1:{grpc_port}")
            subprocess.run(rpc, check=True, cwd=folder, env=_environment())
            _say("classify a text with the wheel's client")
            environment = {**_environment(), "SLUICEGATE_URL": url, "SLUICEGATE_KEY": _KEY}
            call = (str(bin_folder / "python"), "-c", _CALL)
            subprocess.run(call, check=True, cwd=folder, env=environment)
        _say("write and check a configuration")
        for command in (("init",), ("config", "check")):
            words = (str(bin_folder / "sluicegate"), *command)
            subprocess.run(words, check=True, cwd=folder, env=_environment())
    _say("the wheel works without a clone")
    return 0


@contextmanager
def _up(program: Path, folder: Path, models: Path, url: str, grpc_port: int) -> Iterator[None]:
    """Run `sluicegate up` in `folder` while entered, and check that it ends without an error."""
    port = url.rpartition(":")[2]
    command = [str(program), "up", "--models", str(models), "--port", port]
    command += ["--admin-port", str(free_port()), "--demo-key", _KEY]
    command += ["--grpc-port", str(grpc_port)]
    _say(" ".join(["sluicegate", *command[1:]]))
    output = folder / "up.out"
    with output.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=folder, env=_environment(), stdout=file, stderr=subprocess.STDOUT
        )
    try:
        ends = time.monotonic() + _START
        while "Ctrl-C stops everything" not in output.read_text(errors="replace"):
            if process.poll() is not None or time.monotonic() > ends:
                sys.exit(f"it did not start: {output.read_text(errors='replace')}")
            time.sleep(0.2)
        yield
    finally:
        process.send_signal(signal.SIGINT)
        status = process.wait(_STOP)
    if status != 0:
        sys.exit(f"it ended with {status}: {output.read_text(errors='replace')}")


def _environment() -> dict[str, str]:
    """Return the environment except variables that configure Sluicegate or Python."""
    return {
        name: value
        for name, value in os.environ.items()  # noqa: TID251 - passed on to programs
        if not name.startswith(("SLUICEGATE_", "PYTHON", "VIRTUAL_ENV"))
    }


def _say(line: str) -> None:
    print(f"check-wheel: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
