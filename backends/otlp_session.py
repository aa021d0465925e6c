"""Posts exports over plain HTTP through one connection that is kept open.

`requests` reads the environment, merges headers and looks for a proxy at each request: more than
half of what an export costs a process that answers requests meanwhile.
"""

import io
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlsplit

import requests
from requests.structures import CaseInsensitiveDict
from requests.utils import select_proxy
from typing_extensions import override


class ExportSession(requests.Session):
    """Posts bodies to a URL of `http` that no proxy serves; `requests` does everything else.

    What the environment says, such as proxies and passwords in `.netrc`, is read once for each URL.
    Raises the exceptions of `requests`. Belongs to one thread.
    """

    def __init__(self) -> None:
        super().__init__()
        self._endpoint: tuple[str, Mapping[str, str]] | None = None
        self._connection: HTTPConnection | None = None
        self._path = ""
        self._headers: dict[str, str | bytes] = {}

    @override
    def request(self, method: Any, url: Any, *args: Any, **kwargs: Any) -> requests.Response:
        """Send a request as `requests.Session` does."""
        body, timeout = kwargs.get("data"), kwargs.get("timeout")
        headers = kwargs.get("headers") or {}
        if method != "POST" or kwargs.get("allow_redirects") is not False:
            return super().request(method, url, *args, **kwargs)
        if (url, headers) != self._endpoint:
            self._open(url, headers)
        if self._connection is None or not isinstance(body, bytes):
            return super().request(method, url, *args, **kwargs)
        return self._post(self._connection, body, timeout)

    @override
    def close(self) -> None:
        """Close all connections."""
        super().close()
        if self._connection is not None:
            self._connection.close()

    def _open(self, url: str, headers: Mapping[str, str]) -> None:
        """Prepare requests to `url`: they need no connection of ours with TLS, or with a proxy."""
        if self._connection is not None:
            self._connection.close()
        self._endpoint, self._connection = (url, headers), None
        prepared = self.prepare_request(requests.Request("POST", url, headers=headers, data=b"x"))
        full_url = prepared.url or url
        parts = urlsplit(full_url)
        settings = self.merge_environment_settings(full_url, {}, None, None, None)
        if parts.scheme != "http" or not parts.hostname:
            return
        if select_proxy(full_url, settings["proxies"]):
            return
        self._connection = HTTPConnection(parts.hostname, parts.port)
        self._path = prepared.path_url
        self._headers = dict(prepared.headers) | {"Accept-Encoding": "identity"}
        del self._headers["Content-Length"]

    def _post(
        self, connection: HTTPConnection, body: bytes, timeout: float | None
    ) -> requests.Response:
        connection.timeout = timeout
        if connection.sock is not None:
            connection.sock.settimeout(timeout)
        try:
            connection.request("POST", self._path, body, self._headers)
            answer = connection.getresponse()
            content = answer.read()
        except TimeoutError as error:
            connection.close()
            raise requests.Timeout(error) from error
        except (OSError, HTTPException) as error:
            connection.close()
            raise requests.ConnectionError(error) from error
        response = requests.Response()
        response.status_code, response.reason = answer.status, answer.reason
        response.headers = CaseInsensitiveDict(answer.headers.items())
        response.raw = io.BytesIO(content)
        return response
