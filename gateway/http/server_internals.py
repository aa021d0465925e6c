"""Imports uvicorn's internals, which the rest of the package takes from here only.

uvicorn promises none of these names. `tests/unit/gateway/http/test_server_internals.py` lists each
attribute of theirs that the package relies on.
"""

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

__all__ = ["STATUS_LINE", "FlowControl", "HttpToolsProtocol", "RequestResponseCycle"]
