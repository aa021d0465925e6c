"""Writes algorithms that each do a different kind of harm."""

from pathlib import Path

from testing.model_repository import write_model

HEAD = """
import asyncio
import os
import re
import signal
import sys
import threading
import time


async def run(item, ask):
    if not str(item).startswith("harm"):
        await ask("mood", [item])
        return os.getpid()
    return await harm(item, ask)


async def harm(item, ask):
"""
HARM = {
    "regex": r"return bool(re.match(r'^(\w+\s?)*$', 'a' * 40 + '!'))",
    "loop": "return sum(range(10**11))",
    "deaf": """
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            pass
    """,
    "exit": "os._exit(0)",
    "stop": "os.kill(os.getpid(), signal.SIGSTOP)",
    "signals": """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.raise_signal(signal.SIGINT)
    for process in (os.getppid(), 0, -1):
        try:
            os.kill(process, signal.SIGKILL)
        except PermissionError:
            pass
    os.kill(os.getppid(), signal.SIGKILL)
    """,
    "threads": """
    while True:
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    """,
    "spinning": """
    await asyncio.to_thread(sum, range(10**11))
    """,
    "fork": """
    while True:
        os.fork()
    """,
    "memory": """
    kept = []
    while True:
        kept.append(bytearray(2**20))
    """,
    "mapped": """
    import mmap
    kept = []
    while True:
        kept.append(mmap.mmap(-1, 2**24))
        kept[-1].write(bytes(2**24))
    """,
    "recursion": """
    sys.setrecursionlimit(10**9)
    def deeper():
        return deeper()
    deeper()
    """,
    "nan": "return {'score': float('nan')}",
}
IMPORTS = {
    "import-hangs": "while True: pass",
    "import-ends": "import os; os._exit(0)",
}


def write_algorithm(
    models: Path,
    name: str,
    text: str,
    *,
    time: float = 2.0,
    import_time: float = 30.0,
    uses: str = "mood",
) -> None:
    """Write an algorithm with the code `text`, which may call the model `uses`.

    An item may take `time` seconds, and importing the code may take `import_time` seconds.
    """
    options = {"time": time, "import_time": import_time, "memory_bytes": 192 * 2**20}
    manifest = {
        "kind": "algorithm",
        "algorithm": "custom",
        "code": "own.py",
        "uses": [uses],
        "tasks": ["infer"],
        "options": options,
    }
    (write_model(models, name, manifest) / "own.py").write_text(text)
