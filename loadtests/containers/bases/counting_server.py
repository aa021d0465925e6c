"""Answers and counts every HTTP request. It replaces a program that has no Debian package.

A request for `/counted` is answered with the number of requests that carried a body, and the total
size of these bodies in bytes. The server listens on each port of `PORTS`, and ignores its command
line.
"""

import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_COUNTED = {"requests": 0, "bytes": 0}
_LOCK = threading.Lock()


class CountingHandler(BaseHTTPRequestHandler):
    """Answers every request with 200."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer `/counted` with the counts, and any other path with an empty body."""
        self._answer(repr(_COUNTED).replace("'", '"').encode() if self.path == "/counted" else b"")

    def do_POST(self) -> None:
        """Count the body of a request."""
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        with _LOCK:
            _COUNTED["requests"] += 1
            _COUNTED["bytes"] += len(body)
        self._answer(b"")

    def log_message(self, *_: object) -> None:  # type: ignore[explicit-override] # Python alone
        """Print nothing."""

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    """Listen on every port until the process is killed."""
    servers = [
        ThreadingHTTPServer(("", int(port)), CountingHandler)
        for port in os.environ["PORTS"].split()
    ]
    for server in servers[1:]:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    servers[0].serve_forever()


if __name__ == "__main__":
    main()
