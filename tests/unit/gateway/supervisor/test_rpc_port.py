"""The port of gRPC is Triton's where nobody else has it."""

import socket

import pytest

from gateway.supervisor import rpc_port
from gateway.supervisor.errors import CannotStart
from gateway.supervisor.listeners import reserve_port
from gateway.supervisor.rpc_port import open_rpc_port
from testing.ports import free_port


def test_a_port_in_use_turns_it_off_unless_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        monkeypatch.setattr(rpc_port, "PREFERRED", port)

        with open_rpc_port("127.0.0.1", None, say=said.append) as taken:
            pass
        with (
            pytest.raises(CannotStart, match="`--grpc-port`"),
            open_rpc_port("127.0.0.1", port, say=said.append),
        ):
            pass

    assert taken == 0
    (line,) = said
    assert "gRPC is off" in line


def test_of_two_that_start_together_one_has_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc_port, "PREFERRED", free_port())
    said: list[str] = []

    with (
        open_rpc_port("127.0.0.1", None, say=said.append) as first,
        open_rpc_port("127.0.0.1", None, say=said.append) as second,
    ):
        assert (first, second) == (rpc_port.PREFERRED, 0)
    assert "another sluicegate" in said[0]


def test_none_is_taken_where_it_is_not_wanted_or_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with open_rpc_port("127.0.0.1", 0, say=print) as port:
        assert port == 0
    monkeypatch.setattr(rpc_port, "_LIBRARIES", ("google.nothing", "nothing.at.all"))
    with open_rpc_port("127.0.0.1", None, say=print) as port:
        assert port == 0
    with (
        pytest.raises(CannotStart, match=r"pip install '\.\[gateway,grpc\]'"),
        open_rpc_port("127.0.0.1", 8001, say=print),
    ):
        pass


def test_a_reserved_port_is_left_to_those_who_share_it() -> None:
    port = free_port()
    with (
        reserve_port("127.0.0.1", port, option="--grpc-port"),
        reserve_port("127.0.0.1", 0, option="--grpc-port"),
        reserve_port("127.0.0.1", 0, option="--grpc-port"),
        socket.socket() as child,
    ):
        child.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        child.bind(("127.0.0.1", port))
        child.listen()
        with (
            pytest.raises(CannotStart, match="another sluicegate"),
            reserve_port("127.0.0.1", port, option="--grpc-port"),
        ):
            pass
        # Connections reach the child, and no socket that does not listen.
        for _ in range(8):
            with socket.create_connection(("127.0.0.1", port)):
                child.accept()[0].close()
