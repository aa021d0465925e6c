"""The sockets that workers inherit, and the port that they share for gRPC."""

import contextlib
import random
import socket
from collections.abc import Iterator

import pytest

from sluicegate.gateway.supervisor import listeners
from sluicegate.gateway.supervisor.errors import CannotStart, ExitCode
from sluicegate.gateway.supervisor.listeners import (
    check_free,
    claim,
    free_port,
    open_listeners,
    open_rpc_port,
    reserve_port,
)

HOST = "127.0.0.1"


@pytest.fixture
def port() -> int:
    return free_port(HOST, taken=set(), choose=random.Random())


@contextlib.contextmanager
def busy(port: int, *, reuse: bool = False) -> Iterator[socket.socket]:
    """Listen on `port`."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((HOST, port))
        listener.listen()
        yield listener


@pytest.mark.parametrize("reuse", [False, True])
def test_a_busy_port_is_refused_even_where_it_could_be_shared(port: int, *, reuse: bool) -> None:
    with busy(port, reuse=reuse), pytest.raises(CannotStart) as caught:
        check_free(HOST, port, option="--port")

    assert caught.value.exit_code == ExitCode.BUSY
    assert f"port {port}" in str(caught.value)
    assert "`--port`" in str(caught.value)


def test_a_port_that_was_just_left_is_free(port: int) -> None:
    with busy(port) as listener, socket.create_connection((HOST, port)):
        accepted, _ = listener.accept()
        accepted.close()  # the side that closes first keeps the port in TIME_WAIT

    check_free(HOST, port, option="--port")


def test_several_workers_share_one_port(port: int) -> None:
    with open_listeners(HOST, port, 3, option="--port") as listeners:
        for listener in listeners:
            listener.listen()

        names = {listener.getsockname() for listener in listeners}

    assert names == {(HOST, port)}


def test_a_second_supervisor_is_refused_before_the_first_one_listens(port: int) -> None:
    with (
        open_listeners(HOST, port, 1, option="--port"),
        pytest.raises(CannotStart, match=r"another sluicegate.* with `--port`"),
        open_listeners(HOST, port, 1, option="--port"),
    ):
        pytest.fail("it was opened twice")


def test_a_claim_ends_with_its_owner(port: int) -> None:
    with claim(port, option="--port"):
        pass

    with claim(port, option="--port"):
        pass


def test_a_connection_that_waits_outlives_the_process_that_listened(port: int) -> None:
    with open_listeners(HOST, port, 1, option="--port") as (listener,):
        first = listener.dup()
        first.listen()
        with socket.create_connection((HOST, port)):
            first.close()

            successor = listener.dup()
            successor.settimeout(5)
            accepted, _ = successor.accept()

            accepted.close()
            successor.close()


def test_a_port_that_is_taken_is_not_given_again() -> None:
    taken = set(range(20_000, 31_999))

    with contextlib.suppress(CannotStart):
        assert free_port(HOST, taken=taken, choose=random.Random(1)) == 31_999


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(CannotStart, match="cannot be used"):
        check_free("192.0.2.1", 8080, option="--port")


def test_a_port_in_use_turns_it_off_unless_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        monkeypatch.setattr(listeners, "RPC_PORT", port)

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
    monkeypatch.setattr(listeners, "RPC_PORT", free_port(HOST, taken=set(), choose=random.Random()))
    said: list[str] = []

    with (
        open_rpc_port("127.0.0.1", None, say=said.append) as first,
        open_rpc_port("127.0.0.1", None, say=said.append) as second,
    ):
        assert (first, second) == (listeners.RPC_PORT, 0)
    assert "another sluicegate" in said[0]


def test_none_is_taken_where_it_is_not_wanted_or_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with open_rpc_port("127.0.0.1", 0, say=print) as port:
        assert port == 0
    monkeypatch.setattr(listeners, "_LIBRARIES", ("google.nothing", "nothing.at.all"))
    with open_rpc_port("127.0.0.1", None, say=print) as port:
        assert port == 0
    with (
        pytest.raises(CannotStart, match=r"pip install '\.\[gateway,grpc\]'"),
        open_rpc_port("127.0.0.1", 8001, say=print),
    ):
        pass


def test_a_reserved_port_is_left_to_those_who_share_it() -> None:
    port = free_port(HOST, taken=set(), choose=random.Random())
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
