"""Serves one model on loopback as a model hub, as far as downloads need it."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from typing_extensions import override

_COMMIT = "0123456789abcdef0123456789abcdef01234567"
_NAMES = (
    "README.md",
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "model.safetensors",
    "pytorch_model.bin",
)


class Hub(ThreadingHTTPServer):
    """Serves a folder as `owner/model`; `asked` are the requested paths."""

    def __init__(self, source: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self._source = source
        self.asked: list[str] = []

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def content(self, path: str) -> bytes | None:
        """Return what stands at a path."""
        self.asked.append(path)
        names = [name for name in _NAMES if (self._source / name).is_file()]
        if path.startswith("/api/models/owner/model/tree/"):
            entries = [
                {"type": "file", "path": n, "size": len(self._file(n)), "oid": "0" * 40}
                for n in names
            ]
            return json.dumps(entries).encode()
        if path.startswith("/api/models/owner/model"):
            siblings = [{"rfilename": name} for name in names]
            document = {"id": "owner/model", "sha": _COMMIT, "siblings": siblings}
            return json.dumps(document).encode()
        prefix = f"/owner/model/resolve/{_COMMIT}/"
        return self._file(path.removeprefix(prefix)) if path.startswith(prefix) else None

    def _file(self, name: str) -> bytes:
        path = self._source / name
        return path.read_bytes() if path.is_file() else b""


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self.wfile.write(self._answer())

    def _answer(self) -> bytes:
        """Send the headers and return the body."""
        found = self.server.content(self.path.partition("?")[0])
        if found is None:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
        else:
            self.send_response(200)
            self.send_header("ETag", f'"{hash(found):x}"')
            self.send_header("X-Repo-Commit", _COMMIT)
        self.send_header("Content-Length", str(len(found or b"")))
        self.end_headers()
        return found or b""

    @override
    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def running_hub(source: Path) -> Iterator[Hub]:
    """Run a hub over a folder."""
    with Hub(source) as hub:
        thread = threading.Thread(target=hub.serve_forever)
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()
