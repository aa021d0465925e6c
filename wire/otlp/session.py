"""Posts exports over plain HTTP with one persistent connection, without the cost of `requests`.

For each request, `requests` reads the environment, merges headers and looks for a proxy. This is
more than half of the cost of an export.
"""

import contextlib
import io
import select
import socket
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any, Final
from urllib.parse import urlsplit

import requests
from requests.structures import CaseInsensitiveDict
from requests.utils import select_proxy
from typing_extensions import override

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
        self._connection: HTTPConnection | None = None
        self._path = ""
        self._headers: dict[str, str | bytes] = {}

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
        """Prepare requests to `url`.

        If they need TLS or a proxy, `requests` sends them, and there is no connection of our own.
        """
        if self._connection is not None:
            self._connection.close()
        self._endpoint, self._connection = (url, dict(headers)), None
        prepared = self.prepare_request(requests.Request("POST", url, headers=headers, data=b"x"))
        full_url = prepared.url or url
        parts = urlsplit(full_url)
        settings = self.merge_environment_settings(full_url, {}, None, None, None)
        if parts.scheme != "http" or not parts.hostname:
            return
        if select_proxy(full_url, settings["proxies"]):
            return
        # Pass the port. Otherwise, `HTTPConnection` would look for a port in an IPv6 address.
        self._connection = HTTPConnection(parts.hostname, parts.port or 80)
        self._path = prepared.path_url
        prepared.headers["Accept-Encoding"] = "identity"
        del prepared.headers["Content-Length"]
        self._headers = dict(prepared.headers)

    def _post(
        self, connection: HTTPConnection, body: bytes, timeout: float | None
    ) -> requests.Response:
        try:
            answer = _exchange(connection, self._path, body, self._headers, timeout)
            with answer:
                content = answer.read(MOST_READ)
                if not answer.isclosed():
                    connection.close()  # the rest would be read as the next response
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


def _exchange(
    connection: HTTPConnection,
    path: str,
    body: bytes,
    headers: dict[str, str | bytes],
    timeout: float | None,
) -> HTTPResponse:
    """Send a request, and return the response before its body is read."""
    connection.timeout = timeout
    if connection.sock is not None and _is_readable(connection.sock):
        # The server has closed the connection, or sent bytes without a request.
        connection.close()
    if connection.sock is None:
        connection.connect()
    else:
        connection.sock.settimeout(timeout)
    # The server may respond and close the connection before it has read the whole body.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.request("POST", path, body, headers)
    return connection.getresponse()


def _is_readable(opened: socket.socket) -> bool:
    """Return whether a socket has unread bytes or was closed."""
    # `select` does not support file descriptors above 1023.
    polled = select.poll()
    polled.register(opened, select.POLLIN)
    return bool(polled.poll(0))
