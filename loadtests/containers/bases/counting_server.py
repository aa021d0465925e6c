"""Answers and counts every HTTP request, in the place of a program that has no package.

A request for `/counted` is answered with the number of the others that carried a body, and their
bytes. It listens on each port of `PORTS`; what it is given on its command line is of no interest.
"""

import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_COUNTED = {"requests": 0, "bytes": 0}
_LOCK = threading.Lock()


class CountingHandler(BaseHTTPRequestHandler):
    """Answers 200 to everything."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer with what was counted, or nothing."""
        self._answer(repr(_COUNTED).replace("'", '"').encode() if self.path == "/counted" else b"")

    def do_POST(self) -> None:
        """Count a body."""
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
    """Listen on every port until killed."""
    servers = [
        ThreadingHTTPServer(("", int(port)), CountingHandler)
        for port in os.environ["PORTS"].split()
    ]
    for server in servers[1:]:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    servers[0].serve_forever()


if __name__ == "__main__":
    main()
