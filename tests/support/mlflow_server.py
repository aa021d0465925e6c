"""Serves one registered model on loopback as MLflow's REST API does, as far as imports need it."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from typing_extensions import override

_API, _ARTIFACTS = "/api/2.0/mlflow/", "/api/2.0/mlflow-artifacts/artifacts"
_PLACE = "1/models/m-7/artifacts"


class MlflowServer(ThreadingHTTPServer):
    """Serves a folder as the artifacts of version 3 of `classifier`, whose alias is `champion`.

    `uri` is where it says that they are, and `listing` replaces every list of them. `asked` are
    the requested paths, and `authorizations` what callers sent for credentials.
    """

    def __init__(self, artifacts: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.artifacts = artifacts
        self.uri = f"mlflow-artifacts:/{_PLACE}"
        self.asked: list[str] = []
        self.authorizations: set[str] = set()
        self.listed_more = 0
        self.listing: bytes | None = None

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def content(self, path: str, given: dict[str, str]) -> bytes | None:
        """Return the body of a response."""
        self.asked.append(path)
        if path == f"{_API}registered-models/alias" and given["alias"] == "champion":
            return json.dumps({"model_version": {"name": given["name"], "version": "3"}}).encode()
        if path == f"{_API}model-versions/get-download-uri":
            known = given == {"name": "classifier", "version": "3"}
            return json.dumps({"artifact_uri": self.uri}).encode() if known else None
        if path == f"{_API}logged-models/m-7":
            info = {"artifact_uri": f"mlflow-artifacts:/{_PLACE}"}
            return json.dumps({"model": {"info": info}}).encode()
        if path == _ARTIFACTS and self.listing is not None:
            return self.listing
        if path == _ARTIFACTS:
            folder = self.artifacts / given["path"].removeprefix(_PLACE).strip("/")
            found = [self._entry(each) for each in sorted(folder.iterdir())]
            return json.dumps({"files": found}).encode()
        name = path.removeprefix(f"{_ARTIFACTS}/{_PLACE}/")
        return (self.artifacts / name).read_bytes() if name != path else None

    def _entry(self, path: Path) -> dict[str, object]:
        if path.is_dir():
            return {"path": path.name, "is_dir": True}
        size = path.stat().st_size + self.listed_more
        return {"path": path.name, "is_dir": False, "file_size": size}


class _Handler(BaseHTTPRequestHandler):
    server: MlflowServer

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        given = {name: values[0] for name, values in parse_qs(parts.query).items()}
        self.server.authorizations.add(self.headers.get("Authorization", ""))
        found = self.server.content(unquote(parts.path), given)
        missing = json.dumps({"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "not found"})
        self.send_response(200 if found is not None else 404)
        body = missing.encode() if found is None else found
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    @override
    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def running_mlflow(artifacts: Path) -> Iterator[MlflowServer]:
    """Run a server over a folder of artifacts."""
    with MlflowServer(artifacts) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
