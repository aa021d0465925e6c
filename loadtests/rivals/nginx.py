"""Runs nginx with Lua as a rival: as a cache in its memory or in Redis, or as a caching proxy."""

import contextlib
import hashlib
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from redis import Redis

from testing.ports import free_port
from testing.valkey import Valkey
from testing.waiting import wait_until

KEY = "sk-test-1234567890abcdef"
_FOLDER = Path(__file__).parent
_MODULES = Path("/usr/lib/nginx/modules")


def is_installed() -> bool:
    """Return whether this machine has nginx with Lua."""
    module = _MODULES / "ngx_http_lua_module.so"
    return shutil.which("nginx") is not None and module.exists()


@contextlib.contextmanager
def nginx(
    kind: str,
    folder: Path,
    texts: Sequence[str] = (),
    *,
    answer: str = "",
    redis_port: int = 0,
    upstream: str = "",
) -> Iterator[tuple[int, int]]:
    """Run the rival `kind`; yield its port and process.

    `memory` and `redis` have the answers to `texts` already. `proxy` sends requests to the model
    server at `upstream`, and keeps its answers.
    """
    folder.mkdir()
    (folder / "texts").write_text("".join(f"{text}\n" for text in texts))
    port = free_port()
    filled = {"FOLDER": folder, "REDIS_PORT": redis_port, "PORT": port, "API_KEY": KEY}
    filled |= {"UPSTREAM": upstream, "MODULES": _MODULES, "ANSWER": answer}
    document = (_FOLDER / f"{kind}.conf").read_text()
    for name, value in filled.items():
        document = document.replace(name, str(value))
    (folder / "nginx.conf").write_text(document)
    command = ["nginx", "-c", str(folder / "nginx.conf"), "-p", str(folder), "-e", "stderr"]
    child = subprocess.Popen([*command, "-g", "master_process off; user root;"])
    try:
        wait_until((folder / "nginx.pid").exists, within=10, what="nginx runs")
        yield port, child.pid
    finally:
        child.terminate()
        child.wait()


@contextlib.contextmanager
def filled_valkey(texts: Sequence[str], *, answer: str) -> Iterator[tuple[int, int]]:
    """Run a Valkey with the answer to each of `texts`; yield its port and process."""
    with Valkey(port=free_port()) as server, Redis.from_url(server.tcp_url) as client:
        for text in texts:
            digest = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
            client.set(f"c:sentiment:{digest}", answer)
        yield server.port, server.pid
