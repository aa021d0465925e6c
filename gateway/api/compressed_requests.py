"""Inflates the bodies of requests that come compressed.

Hardly more is ever inflated than a body may have.
"""

import asyncio
from typing import Final

from gateway.api.content_coding import inflate
from gateway.api.http import too_large
from gateway.api.incoming_request import IncomingBody, IncomingRequest
from gateway.runtime.runtime import Runtime

_NAME: Final = b"content-encoding"
_REPLACED: Final = frozenset({_NAME, b"content-length", b"transfer-encoding", b"expect"})


async def inflate_body(request: IncomingRequest, body: IncomingBody, runtime: Runtime) -> None:
    """Inflate the body if it is compressed; the headers of the request then say what it is now.

    Without a valid key, nothing is inflated: the request is refused later anyway.

    Raises:
        GatewayError: the body is damaged, too long, too late, or in an unknown coding.
        ClientDisconnected: the caller is gone.
    """
    coding = _coding(request) if _NAME in request.fields else b""
    if not coding or request.principal is None:
        return
    limit = runtime.document.request.max_body_bytes
    await body.read_ahead(request, runtime)
    if not body.is_whole:
        raise too_large(limit)
    name = coding.decode("latin-1").lower()
    body.replace(await asyncio.to_thread(inflate, body.content, name, limit=limit))
    kept = [header for header in request.headers if header[0] not in _REPLACED]
    request.set_headers([*kept, (b"content-length", b"%d" % len(body.content))])


def _coding(request: IncomingRequest) -> bytes:
    coding = b", ".join([value for name, value in request.headers if name == _NAME]).strip()
    return b"" if coding.lower() == b"identity" else coding
