"""Posts exports over plain HTTP through one connection that is kept open.

`requests` reads the environment, merges headers and looks for a proxy at each request: more than
half of what an export costs a process that answers requests meanwhile.
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
"""Bytes of an answer that are kept: nobody needs more than its status."""
# Those of TLS say nothing over plain HTTP.
_ARGUMENTS: Final = {"headers", "data", "timeout", "allow_redirects", "verify", "cert"}


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
        """Prepare requests to `url`: they need no connection of ours with TLS, or with a proxy."""
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
        # Without a port it would be looked for in the address, where one of IPv6 has colons.
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
                    connection.close()  # the rest of it would be read as the next answer
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
    """Send a request, and return its answer with a body that is still to be read."""
    connection.timeout = timeout
    if connection.sock is not None and _is_readable(connection.sock):
        # It was closed, or is about to be: what came without a request is no answer to one.
        connection.close()
    if connection.sock is None:
        connection.connect()
    else:
        connection.sock.settimeout(timeout)
    # It may have answered, and closed the connection, before it read all of the body.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.request("POST", path, body, headers)
    return connection.getresponse()


def _is_readable(opened: socket.socket) -> bool:
    """Tell whether bytes, or an end, have come; `select` takes no numbers above 1023."""
    polled = select.poll()
    polled.register(opened, select.POLLIN)
    return bool(polled.poll(0))
