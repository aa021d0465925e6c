"""Stores artifacts in a registry, by OCI's distribution specification."""

import base64
import contextlib
import io
import json
import re
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from sluicegate.backends.model_tools.syncing.manifest import (
    INDEX,
    MANIFEST,
    SyncProblem,
    read_document,
    sha256,
)
from sluicegate.backends.settings import process_environment
from sluicegate.wire.installing import install_command

try:
    import httpx
except ImportError:
    raise SyncProblem(
        f"models in registries need the package `httpx`; run {install_command('models')}"
    ) from None

_DOCKER = "application/vnd.docker.distribution.manifest"
_ACCEPT = ", ".join((MANIFEST, INDEX, f"{_DOCKER}.v2+json", f"{_DOCKER}.list.v2+json"))
_PARAMETER = re.compile(r'(\w+)="([^"]*)"')
_VISIBLE = re.compile(r"[!-~]+")
_OK, _CREATED, _PARTIAL, _UNAUTHORIZED, _NOT_FOUND = 200, 201, 206, 401, 404
_OUT_OF_RANGE = 416
_MOVED = frozenset({301, 302, 303, 307, 308})
_MOST_REQUESTS = 8
_PORTS = {"http": 80, "https": 443}
_HUB = frozenset({"docker.io", "index.docker.io", "registry-1.docker.io"})


class RegistryStore:
    """Implements `ArtifactStore` with the repository `name` of a registry.

    Credentials are read from the files of `docker login` and `podman login`. They are sent only to
    the registry and its token service. Requests to loopback addresses use HTTP. All other requests
    use HTTPS, unless `plain_http` is set.
    """

    def __init__(self, host: str, name: str, *, plain_http: bool = False) -> None:
        scheme = "http" if plain_http or _is_loopback(host) else "https"
        self._where = f"oci://{host}/{name}"
        self._credentials = _credentials(host)
        self._authorization = ""
        with self._translated():
            self._base = httpx.URL(f"{scheme}://{host}/v2/{name}/")
        self._client = httpx.Client(timeout=httpx.Timeout(30.0, connect=10.0))

    def manifest(self, reference: str) -> tuple[str, bytes]:
        """Return a manifest; see `ArtifactStore`."""
        what = f"the manifest `{reference}`"
        with self._request("GET", f"manifests/{reference}", {"Accept": _ACCEPT}) as response:
            self._check(response, what, _OK)
            content = read_document(response.iter_bytes(), f"{self._where}: {what}")
        said = response.headers.get("docker-content-digest") or sha256(content)
        return reference if reference.startswith("sha256:") else said, content

    def blob(self, digest: str, start: int = 0) -> Iterator[bytes]:
        """Yield a blob; see `ArtifactStore`."""
        own = {"Range": f"bytes={start}-"} if start else {}
        headers = {"Accept-Encoding": "identity", **own}
        with self._request("GET", f"blobs/{digest}", headers) as response:
            if start and response.status_code in (_OK, _OUT_OF_RANGE):
                return
            self._check(response, f"the blob `{digest}`", _PARTIAL if start else _OK)
            # The raw stream keeps the bytes that arrived before an interruption.
            yield from response.iter_raw()

    def has(self, digest: str, size: int) -> bool:
        """Return whether a blob exists; see `ArtifactStore`."""
        with self._request("HEAD", f"blobs/{digest}") as response:
            said = response.headers.get("content-length", str(size))
            return response.status_code == _OK and said == str(size)

    def put_blob(self, digest: str, path: Path) -> None:
        """Store a blob; see `ArtifactStore`."""
        with self._request("POST", "blobs/uploads/") as began:
            self._check(began, "an upload", 202)
            place = self._redirect_target(self._base, began).copy_merge_params({"digest": digest})
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Length": str(path.stat().st_size),
        }
        with path.open("rb") as file, self._request("PUT", place, headers, file) as response:
            self._check(response, f"the blob `{digest}`", _CREATED)

    def put_manifest(self, digest: str, content: bytes, tag: str) -> None:
        """Store a manifest; see `ArtifactStore`."""
        for reference in (digest, tag):
            own = {"Content-Type": MANIFEST}
            with self._request("PUT", f"manifests/{reference}", own, content) as response:
                self._check(response, f"the manifest `{reference}`", _CREATED)

    def close(self) -> None:
        """Close the connections; see `ArtifactStore`."""
        self._client.close()

    @contextlib.contextmanager
    def _request(
        self,
        method: str,
        place: str | httpx.URL,
        headers: Mapping[str, str] | None = None,
        content: io.BufferedReader | bytes | None = None,
    ) -> Iterator[httpx.Response]:
        """Send a request; log in if the registry demands it, and follow redirects."""
        with self._translated():
            url = self._base.join(place)
            has_logged_in = False
            for _ in range(_MOST_REQUESTS):
                is_own = _origin(url) == _origin(self._base)
                response = self._send(method, url, headers or {}, content, is_own=is_own)
                with contextlib.closing(response):
                    if response.status_code == _UNAUTHORIZED and is_own and not has_logged_in:
                        has_logged_in = self._log_in(response.headers.get("www-authenticate", ""))
                        if has_logged_in:
                            continue
                    if method not in ("GET", "HEAD") or response.status_code not in _MOVED:
                        yield response
                        return
                    url = self._redirect_target(url, response)
        raise SyncProblem(f"{self._where}: the registry redirects too often")

    def _send(
        self,
        method: str,
        url: httpx.URL,
        headers: Mapping[str, str],
        content: io.BufferedReader | bytes | None,
        *,
        is_own: bool,
    ) -> httpx.Response:
        if isinstance(content, io.BufferedReader):
            content.seek(0)
        own = {"Authorization": self._authorization} if is_own and self._authorization else {}
        request = self._client.build_request(
            method, url, headers={**headers, **own}, content=content
        )
        return self._client.send(request, stream=True)

    def _redirect_target(self, url: httpx.URL, response: httpx.Response) -> httpx.URL:
        target = url.join(response.headers.get("location", ""))
        if url.scheme == "https" and target.scheme != "https":
            raise SyncProblem(
                f"{self._where}: the registry redirects from HTTPS to "
                f"{target.scheme}://{target.host}, which is not secure"
            )
        return target

    def _log_in(self, challenge: str) -> bool:
        """Answer a login challenge with a token or a password; return whether that was possible."""
        kind, _, rest = challenge.partition(" ")
        if kind.lower() == "basic" and self._credentials:
            self._authorization = f"Basic {self._credentials}"
            return True
        if kind.lower() != "bearer":
            return False
        token = self._token(dict(_PARAMETER.findall(rest)))
        if token:
            self._authorization = f"Bearer {token}"
        return bool(token)

    def _token(self, parameters: dict[str, str]) -> str:
        realm = httpx.URL(parameters.pop("realm", ""))
        # A challenge that came over HTTP may be forged, so the password goes only to the registry
        # itself. After a challenge over HTTPS, the password must not be sent over HTTP.
        is_over_http = self._base.scheme == "http"
        may_know = realm.host == self._base.host if is_over_http else realm.scheme == "https"
        own = {"Authorization": f"Basic {self._credentials}"} if self._credentials else {}
        request = self._client.build_request(
            "GET", realm.copy_merge_params(parameters), headers=own if may_know else {}
        )
        with contextlib.closing(self._client.send(request, stream=True)) as told:
            content = read_document(told.iter_bytes(), f"{self._where}: the token")
        try:
            document = json.loads(content) if told.status_code == _OK else {}
            token = str(document.get("token") or document.get("access_token") or "")
        except (ValueError, AttributeError, RecursionError):
            return ""
        return token if _VISIBLE.fullmatch(token) else ""

    def _check(self, response: httpx.Response, what: str, expected: int) -> None:
        if response.status_code == expected:
            return
        if response.status_code == _NOT_FOUND:
            raise SyncProblem(f"{self._where}: {what} does not exist")
        if response.status_code == _UNAUTHORIZED:
            raise SyncProblem(
                f"{self._where}: the registry needs credentials: log in (`docker login`), or "
                "set `DOCKER_CONFIG` to the folder of a `config.json`; credential helpers "
                "(`credsStore`) are not supported"
            )
        raise SyncProblem(f"{self._where}: the registry answered {response.status_code} for {what}")

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        # httpx raises `ValueError` for addresses and headers that cannot be sent.
        except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, ValueError) as error:
            reason = type(error).__name__
            raise SyncProblem(f"{self._where}: the registry cannot be reached: {reason}") from None


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port or _PORTS.get(url.scheme)


def _credentials(host: str) -> str:
    """Return the user name and password for a registry in base64, as login commands store them."""
    key = "https://index.docker.io/v1/" if host in _HUB else host
    for path in _credential_files():
        try:
            document: Any = json.loads(path.read_bytes())
            entry = document["auths"].get(key) or document["auths"][host]
            if auth := entry.get("auth", ""):
                if _VISIBLE.fullmatch(auth):
                    return str(auth)
                continue
            pair = f"{entry['username']}:{entry['password']}"
            return base64.b64encode(pair.encode()).decode()
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return ""


def _credential_files() -> list[Path]:
    environment = process_environment()
    found = []
    if file := environment.get("REGISTRY_AUTH_FILE"):
        found.append(Path(file))
    if folder := environment.get("DOCKER_CONFIG"):
        found.append(Path(folder) / "config.json")
    elif home := environment.get("HOME"):
        found.append(Path(home) / ".docker" / "config.json")
    if runtime := environment.get("XDG_RUNTIME_DIR"):
        found.append(Path(runtime) / "containers" / "auth.json")
    return found


def _is_loopback(host: str) -> bool:
    name = host.rpartition(":")[0] if re.search(r":\d+$", host) else host
    try:
        return ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return name == "localhost"
