"""Runs a registry for tests: the pull and push parts of OCI's distribution protocol, over HTTP."""

import base64
import hashlib
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import parse_qs, urlsplit

from typing_extensions import override

USER, PASSWORD, TOKEN = "puller", "of-models", "a-token"
_BLOB = re.compile(r"/v2/(.+)/blobs/(sha256:[0-9a-f]{64})$")
_MANIFEST = re.compile(r"/v2/(.+)/manifests/([^/]+)$")
_MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"


class Registry(ThreadingHTTPServer):
    """Holds blobs by digest and manifests by reference; demands a token where `wants_token`.

    Of blobs it sends `stop_after` bytes at a time, where that is set, and cuts the connection. It
    sends whoever asks for blobs, or uploads them, to `moved_to`. `realm` is where it says that
    tokens are given, and `token` what it gives.
    """

    def __init__(self, *, wants_token: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.authorizations: list[str] = []
        self.moved_to = ""
        self.realm = f"http://{self.host}/token"
        self.token = f'{{"token":"{TOKEN}"}}'
        self.wants_token = wants_token
        self.stop_after: int | None = None
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05})

    @property
    def host(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.server_address[1]}"

    @override
    def __enter__(self) -> Self:
        self._thread.start()
        return self

    @override
    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Registry
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._serve(with_body=True)

    def do_HEAD(self) -> None:
        self._serve(with_body=False)

    def do_POST(self) -> None:
        if self._is_allowed():
            self._reply(202, headers={"Location": f"{self.server.moved_to}/v2/uploads/one?state=a"})

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if not self._is_allowed():
            return
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        if found := _MANIFEST.match(self.path):
            self.server.manifests[found[2]] = body
        elif parse_qs(urlsplit(self.path).query).get("digest") == [digest]:
            self.server.blobs[digest] = body
        else:
            self._reply(400)
            return
        self._reply(201)

    @override
    def log_message(self, format: str, *args: object) -> None:
        self.server.requests.append(format % args)
        self.server.authorizations.append(self.headers.get("Authorization", ""))

    def _serve(self, *, with_body: bool) -> None:
        if self.path.startswith("/token?"):
            pair = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
            known = self.headers.get("Authorization") == f"Basic {pair}"
            body = self.server.token.encode()
            self._reply(200, body) if known else self._reply(401)
            return
        if not self._is_allowed():
            return
        if found := _MANIFEST.match(self.path):
            content = self.server.manifests.get(found[2])
            headers = {"Content-Type": _MANIFEST_TYPE}
            self._reply(404 if content is None else 200, content or b"", headers)
        elif self.server.moved_to:
            self._reply(307, headers={"Location": f"{self.server.moved_to}{self.path}"})
        elif found := _BLOB.match(self.path):
            self._blob(self.server.blobs.get(found[2]), with_body=with_body)
        else:
            self._reply(404)

    def _blob(self, content: bytes | None, *, with_body: bool) -> None:
        if content is None:
            self._reply(404)
            return
        start = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        body = content[int(start[1]) :] if start else content
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body[: self.server.stop_after])
            self.close_connection = len(body[: self.server.stop_after]) < len(body)

    def _is_allowed(self) -> bool:
        if not self.server.wants_token or self.headers.get("Authorization") == f"Bearer {TOKEN}":
            return True
        realm = f'Bearer realm="{self.server.realm}",service="tests",scope="a:pull"'
        self._reply(401, headers={"WWW-Authenticate": realm})
        return False

    def _reply(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
