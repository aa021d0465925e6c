"""Names each internal of uvicorn and httptools that the gateway relies on.

Where a new release lacks one, the sentence that fails says what broke, before anything else does.
"""

import asyncio
import inspect
import re
from pathlib import Path

import httptools
import pytest
import uvicorn
from uvicorn.server import ServerState

import gateway
from gateway.api.fast_path.protocol import FastPathProtocol
from gateway.http.server_internals import (
    STATUS_LINE,
    FlowControl,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from gateway.http.strict_protocol import StrictHttpProtocol

pytestmark = pytest.mark.anyio
_IMPORT = re.compile(r"^(?:from|import) uvicorn", re.MULTILINE)
_ATTRIBUTE = re.compile(r"\b(\w+)(?=\.(\w+))")

_PROTOCOL = {
    "connection_made": "wraps the transport and starts the head's timeout",
    "connection_lost": "forgets a rejected connection",
    "data_received": "is replaced by bounded parsing",
    "eof_received": "answers what a half-closed connection has sent",
    "resume_writing": "continues after the peer has read",
    "shutdown": "closes idle connections at shutdown",
    "on_message_begin": "starts the timeout of a head",
    "on_url": "receives the target again after an upgrade",
    "on_header": "bounds the number of fields",
    "on_headers_complete": "validates the head",
    "on_body": "receives the body after an upgrade",
    "on_message_complete": "tells bodies from the next head",
    "on_response_complete": "parses pipelined requests that wait",
    "timeout_keep_alive_handler": "closes idle connections",
    "timeout_keep_alive_task": "is started for responses that uvicorn does not see",
    "timeout_keep_alive": "is the timeout of idle connections",
    "_unset_keepalive_if_required": "stops that timer when data arrive",
    "connections": "holds the open connections",
    "tasks": "holds the tasks that a shutdown waits for",
    "server_state": "holds default headers and counters",
    "transport": "is written to and closed",
    "loop": "sets timers",
    "flow": "pauses reading and waits for writing",
    "parser": "is fed, and replaced after an upgrade",
    "pipeline": "holds the requests that wait for earlier responses",
    "cycle": "is the request whose body arrives",
    "scope": "gets the decoded path and the extension",
    "headers": "holds the head's fields so far",
    "expect_100_continue": "is set by the field `expect`",
    "root_path": "is the prefix of decoded paths",
    "client": "is replaced by the client that a proxy names",
    "app_state": "tells requests of a client's certificate",
}
_CYCLE = {
    "scope": "tells the method",
    "transport": "is written to and closed",
    "flow": "waits until the peer reads",
    "default_headers": "begins each response",
    "message_event": "wakes the application",
    "on_response": "ends the response",
    "disconnected": "tells that the client left",
    "keep_alive": "tells whether the connection closes after the response",
    "waiting_for_100_continue": "tells that the client waits for `100 Continue`",
    "body": "holds the body so far",
    "more_body": "tells whether the body is complete",
    "response_started": "tells whether a head was sent",
    "response_complete": "tells whether the response was sent",
}
_FLOW = {
    "drain": "waits until the peer reads",
    "pause_reading": "stops reading",
    "resume_reading": "continues reading",
    "write_paused": "tells that the peer does not read",
}
_PARSER = {
    "feed_data": "parses",
    "get_http_version": "is validated",
    "get_method": "tells HTTP/2 from noise",
    "should_upgrade": "tells that the rest is the body of an ignored upgrade",
    "set_dangerous_leniencies": "allows requests behind `connection: close`",
}
_SERVER_STATE = {
    "connections": "are closed at shutdown",
    "default_headers": "begin each response",
    "tasks": "are waited for at shutdown",
    "total_requests": "counts requests that uvicorn does not see",
}
_SERVER = {
    "capture_signals": "is replaced, since the process handles signals itself",
    "config": "makes the protocol of a connection accepted from a sibling",
    "lifespan": "holds the state of the application",
    "servers": "are closed to stop accepting",
    "server_state": "holds the open connections",
    "started": "tells whether the server accepts",
    "should_exit": "stops the server",
    "serve": "runs the server",
    "shutdown": "is extended by closing idle connections",
}


class _Wire(asyncio.Transport):
    """A transport to nobody."""


async def _application(scope: object, receive: object, send: object) -> None:
    """Answer nothing."""


def _config() -> uvicorn.Config:
    return uvicorn.Config(_application, loop="none", ws="none", lifespan="off", log_config=None)


def _protocol() -> HttpToolsProtocol:
    protocol = HttpToolsProtocol(
        config=_config(),
        server_state=ServerState(),
        app_state={},
        _loop=asyncio.get_running_loop(),
    )
    protocol.connection_made(_Wire())
    return protocol


def _missing(owner: object, kind: str, names: dict[str, str]) -> list[str]:
    return [
        f"{kind} of uvicorn {uvicorn.__version__} has no `{name}`, which {use}."
        for name, use in names.items()
        if not hasattr(owner, name)
    ]


async def test_the_protocol_has_what_the_gateway_relies_on() -> None:
    protocol = _protocol()

    assert _missing(protocol, "`HttpToolsProtocol`", _PROTOCOL) == []
    assert _missing(protocol.flow, "`FlowControl`", _FLOW) == []
    assert _missing(protocol.server_state, "`ServerState`", _SERVER_STATE) == []


async def test_the_parser_has_what_the_gateway_relies_on() -> None:
    parser = _protocol().parser

    assert type(parser) is httptools.HttpRequestParser, "uvicorn parses with another parser."
    assert _missing(parser, "`HttpRequestParser`", _PARSER) == []


async def test_a_request_has_what_the_gateway_relies_on() -> None:
    protocol = _protocol()
    protocol.data_received(b"POST / HTTP/1.1\r\nhost: w\r\ncontent-length: 1\r\n\r\n")

    assert _missing(protocol.cycle, "`RequestResponseCycle`", _CYCLE) == []
    assert isinstance(protocol.cycle, RequestResponseCycle)
    assert protocol.url == b"/", "`HttpToolsProtocol` does not keep the target in `url`."
    for task in protocol.tasks:
        task.cancel()


async def test_the_server_has_what_the_gateway_relies_on() -> None:
    config = _config()
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)

    # `servers` is set when it starts.
    names = {name: use for name, use in _SERVER.items() if name != "servers"}
    assert _missing(server, "`Server`", names) == []
    assert "self.servers" in inspect.getsource(uvicorn.Server), "`Server` has no `servers`."
    assert "sockets" in inspect.signature(uvicorn.Server.shutdown).parameters, (
        "`Server.shutdown` takes no `sockets`, so that it would close them itself."
    )
    assert hasattr(server.lifespan, "state"), "`Lifespan` has no `state` for the protocol."
    assert hasattr(config, "http_protocol_class"), "`Config` has no `http_protocol_class`."


def test_status_lines_are_complete_lines() -> None:
    assert STATUS_LINE[200] == b"HTTP/1.1 200 OK\r\n", "`STATUS_LINE` has another form."
    assert set(range(100, 600)) <= set(STATUS_LINE), "`STATUS_LINE` lacks statuses."


def test_an_upgrade_says_where_it_begins() -> None:
    parser = httptools.HttpRequestParser(object())
    head = b"GET / HTTP/1.1\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"

    with pytest.raises(httptools.HttpParserUpgrade) as upgrade:
        parser.feed_data(head + b"rest")

    assert upgrade.value.args[:1] == (len(head),), "The error does not hold the offset of the rest."


def test_every_internal_that_is_used_is_listed_here() -> None:
    listed = {
        "cycle": _CYCLE,
        "before": _CYCLE,
        "flow": _FLOW,
        "parser": _PARSER,
        "server_state": _SERVER_STATE,
    }
    own = {*vars(FlowControl), "is_held"}
    unlisted = {
        f"`{path.name}` uses `{owner}.{name}`"
        for path in _sources()
        for owner, name in _attributes(path)
        if owner in listed and name not in listed[owner] and name not in own
    }

    assert unlisted == set()


async def test_every_attribute_of_the_protocol_that_is_not_its_own_is_listed_here() -> None:
    names = {*vars(_protocol()), *vars(HttpToolsProtocol)} - {"config", "url"}
    used = {name for path in _sources() for owner, name in _attributes(path) if owner == "self"}
    own = [vars(kind) for kind in FastPathProtocol.__mro__ if issubclass(kind, StrictHttpProtocol)]
    overridden = {name for kind in own for name in kind if not name.startswith("__")}

    assert names & (used | overridden) - set(_PROTOCOL) == set()


def test_uvicorn_is_imported_by_one_package_only() -> None:
    root = Path(gateway.__file__).parent
    importing = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if _IMPORT.search(path.read_text())
    }

    assert importing == {"http/server.py", "http/server_internals.py"}


def _sources() -> list[Path]:
    root = Path(gateway.__file__).parent
    names = ("strict_protocol", "parser_events", "connection_timeouts", "write_coalescing")
    return [
        *(root / "http" / f"{name}.py" for name in names),
        root / "api" / "fast_path" / "protocol.py",
    ]


def _attributes(path: Path) -> list[tuple[str, str]]:
    """Return each two neighbours of dotted names, as `cycle` and `body` of `self.cycle.body`."""
    return _ATTRIBUTE.findall(path.read_text())
