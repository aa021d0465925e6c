"""Posts exports over plain HTTP with one persistent connection, without the cost of `requests`.

For each request, `requests` reads the environment, merges headers and looks for a proxy. This is
more than half of the cost of an export. So exports are given to urllib3, below `requests`.
"""

import io
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import requests
from requests.structures import CaseInsensitiveDict
from requests.utils import select_proxy
from typing_extensions import override
from urllib3 import HTTPConnectionPool
from urllib3.exceptions import HTTPError, NewConnectionError, TimeoutError as HTTPTimeoutError

MOST_READ: Final = 4 * 1024 * 1024
"""The maximum bytes to read of a response; only its status is needed."""
# The arguments that this module supports. `verify` and `cert` do not matter for plain HTTP.
_ARGUMENTS: Final = {"headers", "data", "timeout", "allow_redirects", "verify", "cert"}


class ExportSession(requests.Session):
    """Posts bodies to an `http` URL without a proxy; `requests` sends all other requests.

    This class reads settings such as proxies and `.netrc` once for each URL. It raises the
    exceptions of `requests`. An object belongs to one thread.
    """

    def __init__(self) -> None:
        super().__init__()
        self._endpoint: tuple[str, Mapping[str, str]] | None = None
        self._pool: HTTPConnectionPool | None = None
        self._path = ""
        self._headers: dict[str, Any] = {}

    @override
    def request(self, method: Any, url: Any, *args: Any, **kwargs: Any) -> requests.Response:
        """Send a request; see `requests.Session.request`."""
        body, timeout = kwargs.get("data"), kwargs.get("timeout")
        headers = kwargs.get("headers") or {}
        given = {name for name, value in kwargs.items() if value is not None}
        is_export = method == "POST" and not args and given <= _ARGUMENTS
        if not is_export or kwargs.get("allow_redirects") is not False:
            return super().request(method, url, *args, **kwargs)
        if (url, headers) != self._endpoint:
            self._open(url, headers)
        if self._pool is None or not isinstance(body, bytes):
            return super().request(method, url, *args, **kwargs)
        return self._post(self._pool, body, timeout)

    @override
    def close(self) -> None:
        """Close all connections."""
        super().close()
        if self._pool is not None:
            self._pool.close()

    def _open(self, url: str, headers: Mapping[str, str]) -> None:
        """Prepare requests to `url`.

        If they need TLS or a proxy, `requests` sends them, and there is no connection of our own.
        """
        if self._pool is not None:
            self._pool.close()
        self._endpoint, self._pool = (url, dict(headers)), None
        prepared = self.prepare_request(requests.Request("POST", url, headers=headers, data=b"x"))
        full_url = prepared.url or url
        parts = urlsplit(full_url)
        settings = self.merge_environment_settings(full_url, {}, None, None, None)
        if parts.scheme != "http" or not parts.hostname:
            return
        if select_proxy(full_url, settings["proxies"]):
            return
        self._pool = HTTPConnectionPool(parts.hostname, parts.port or 80)
        self._path = prepared.path_url
        prepared.headers["Accept-Encoding"] = "identity"
        del prepared.headers["Content-Length"]
        self._headers = dict(prepared.headers)

    def _post(
        self, pool: HTTPConnectionPool, body: bytes, timeout: float | None
    ) -> requests.Response:
        try:
            answer = pool.urlopen(
                "POST",
                self._path,
                body,
                self._headers,
                retries=False,
                timeout=timeout,
                preload_content=False,
                enforce_content_length=False,
            )
            content = answer.read(MOST_READ)
            answer.close()  # the connection, too, if there is a rest
        except HTTPError as error:
            is_late = isinstance(error, HTTPTimeoutError)
            if is_late and not isinstance(error, NewConnectionError):
                raise requests.Timeout(error) from error
            raise requests.ConnectionError(error) from error
        response = requests.Response()
        response.status_code, response.reason = answer.status, answer.reason or ""
        response.headers = CaseInsensitiveDict(answer.headers.items())
        response.raw = io.BytesIO(content)
        return response
