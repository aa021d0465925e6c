"""Measures the memory of an open graph in a separate process."""

import subprocess
import sys
from pathlib import Path

from sluicegate.backends.errors import ModelProblem

_ROWS, _TOKENS = 16, 64
_SECONDS = 120


def measure_memory(graph: Path, *, max_tokens: int) -> int | None:
    """Return the bytes that a session over a graph takes after one batch on the CPU.

    Return `None` if the process fails. The measurement needs a new process, because this process
    already holds other memory.
    """
    length = str(min(max_tokens, _TOKENS))
    command = [
        sys.executable,
        "-P",  # a module in the current folder is not imported
        "-m",
        "sluicegate.backends.model_tools.tuning.memory",
        str(graph),
        length,
    ]
    try:
        ran = subprocess.run(command, capture_output=True, check=True, timeout=_SECONDS)  # noqa: S603 - our own module
        return int(ran.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def _run(graph: Path, length: int) -> int:
    import numpy as np  # noqa: PLC0415 - imported before the first measurement, so not counted

    from sluicegate.backends.executors.graph import read_inputs  # noqa: PLC0415
    from sluicegate.backends.executors.padded_batch import ones  # noqa: PLC0415
    from sluicegate.backends.executors.provider import DeviceOptions, open_session  # noqa: PLC0415
    from sluicegate.backends.types import OutputKind  # noqa: PLC0415

    before = resident_bytes()
    session = open_session(graph, DeviceOptions(provider="cpu"))
    given = ones(_ROWS, length, OutputKind.POOLED).by_input()
    kinds = read_inputs(session, graph)
    session.run(None, {name: np.asarray(given[name], kind) for name, kind in kinds.items()})
    return resident_bytes() - before


def resident_bytes() -> int:
    """Return the bytes of memory that this process uses."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    (line,) = [line for line in lines if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    try:
        sys.stdout.write(str(_run(Path(sys.argv[1]), int(sys.argv[2]))))
    except ModelProblem as error:
        sys.exit(str(error))
