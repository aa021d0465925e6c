"""A listening socket is opened on addresses of both IP versions."""

import socket

import pytest

from sluicegate.wire.listening import open_socket


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_clients_reach_an_address_of_either_version(host: str) -> None:
    with open_socket(host, 0, backlog=1) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection((host, port), timeout=5.0) as client:
            assert client.getpeername()[:2] == (host, port)


def test_a_port_that_another_socket_listens_on_is_refused() -> None:
    with open_socket("127.0.0.1", 0, backlog=1) as listener, pytest.raises(OSError, match="in use"):
        open_socket("127.0.0.1", listener.getsockname()[1], backlog=1)
