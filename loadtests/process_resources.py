"""Reads what a process uses: memory, open files and threads."""

import contextlib
from pathlib import Path


def resources_of(pid: int) -> dict[str, int]:
    """Return a process's memory in bytes, open files and threads; nothing if it has ended."""
    folder = Path("/proc") / str(pid)
    try:
        lines = (folder / "status").read_text().splitlines()
        count = sum(1 for _ in (folder / "fd").iterdir())
    except OSError:
        return {}
    fields = {name: rest.split() for name, _, rest in (line.partition(":") for line in lines)}
    if "VmRSS" not in fields:  # the process is a zombie
        return {}
    memory, threads = int(fields["VmRSS"][0]) * 1024, int(fields["Threads"][0])
    return {"memory": memory, "files": count, "threads": threads}


def peak_mib(pid: int) -> int:
    """Return the largest resident memory of a process so far in MiB; 0 if it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) // 1024
    return 0
