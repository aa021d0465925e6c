"""Counts requests that carry a body, on each port of the variable `PORTS`.

It replaces a program that has no Debian package, and ignores its command line. The answer to every
request is the count so far, in JSON.
"""

import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class CountingHandler(BaseHTTPRequestHandler):
    """Answers every request with 200."""

    protocol_version = "HTTP/1.1"
    requests = 0

    def do_GET(self) -> None:
        """Answer with the count."""
        body = json.dumps({"requests": CountingHandler.requests}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        """Count the request."""
        self.rfile.read(int(self.headers.get("content-length", 0)))
        CountingHandler.requests += 1
        self.do_GET()

    def log_message(self, *_: object) -> None:  # type: ignore[explicit-override] # Python alone
        """Print nothing."""


if __name__ == "__main__":
    for port in os.environ["PORTS"].split():
        server = ThreadingHTTPServer(("", int(port)), CountingHandler)
        threading.Thread(target=server.serve_forever).start()
