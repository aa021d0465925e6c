"""Tests that a program outside a simulation notices nothing of the replacements."""

import socket
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from testing.simulation import Simulation, install, uninstall


def test_outside_a_simulation_everything_is_real(simulation: Simulation, tmp_path: Path) -> None:
    """Threads, locks, sockets, files and databases work as ever."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()

    def ask() -> bytes:
        with socket.create_connection(listener.getsockname()) as connection:
            return connection.recv(4)

    with listener, ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        accepted, _ = listener.accept()
        accepted.sendall(b"real")
        accepted.close()
        answer = asking.result()
    (tmp_path / "file").write_text("text")
    with sqlite3.connect(tmp_path / "database") as connection:
        (one,) = connection.execute("SELECT 1").fetchone()
    connection.close()

    assert (answer, one) == (b"real", 1)
    assert isinstance(listener, socket.socket)


def test_time_advances_by_itself_outside_a_simulation(simulation: Simulation) -> None:
    """The clock of the system is read."""
    began = time.monotonic()
    waited = threading.Event().wait(0.001)

    assert not waited
    assert time.monotonic() > began


@pytest.mark.usefixtures("simulation")
def test_a_program_can_go_back() -> None:
    """`uninstall` puts the original functions back."""
    replaced: tuple[object, ...] = (time.monotonic, socket.socket, threading.Lock, open)

    uninstall()
    originals: tuple[object, ...] = (time.monotonic, socket.socket, threading.Lock, open)
    install()

    assert all(a is not b for a, b in zip(replaced, originals, strict=True))
    assert (time.monotonic, socket.socket, threading.Lock, open) == replaced
