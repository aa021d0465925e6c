"""Posts exports over plain HTTP, for the SDK's exporters."""

from contextlib import suppress
from typing import Final

from opentelemetry.exporter.http.transport._base import BaseHTTPResult
from opentelemetry.exporter.http.transport._urllib3 import Urllib3HTTPResult, Urllib3HTTPTransport
from typing_extensions import override
from urllib3 import HTTPResponse, Timeout
from urllib3.exceptions import HTTPError

MOST_READ: Final = 64 * 1024
"""The maximum bytes to read of a response: exporters need only its status."""


class ExportTransport(Urllib3HTTPTransport):
    """Posts like the SDK's transport, but needs only the status of a response.

    The SDK's transport reads a response as a whole. If reading fails, an exporter would post the
    same spans again. The errors of that transport contain the path and the query of the URL.
    """

    @override
    def request(
        self,
        method: str,
        url: str,
        *,
        headers: dict[str, str] | None = None,
        timeout: float | None = None,
        data: bytes | None = None,
    ) -> BaseHTTPResult:
        try:
            answer = self._pool.urlopen(
                method,
                url,
                redirect=False,
                headers=headers,
                body=data,
                timeout=Timeout(total=timeout),
                retries=False,
                preload_content=False,
                enforce_content_length=False,
            )
        except (HTTPError, OSError) as error:
            return Urllib3HTTPResult(error=error)
        content = b""
        with suppress(HTTPError):
            content = answer.read(MOST_READ)
        answer.close()  # if there is a rest, this closes the connection, too
        return Urllib3HTTPResult(
            status_code=answer.status,
            reason=answer.reason,
            response=HTTPResponse(content, answer.headers, answer.status, preload_content=False),
        )
