"""Runs commands in this process, and answers them as the operators' listener would."""

import contextlib
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from click.testing import CliRunner, Result

from sluicegate.gateway.cli.root import main

FOREIGN = "ein-schlüssel-ключ"
OK = b"200 OK\r\nConnection: close\r\n\r\n"
CREATED = b"201 Created\r\nConnection: close\r\n\r\n"
REFUSED = b"400 Bad Request\r\nConnection: close\r\n\r\n"


def run(*arguments: str) -> Result:
    """Run a command."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@contextlib.contextmanager
def listener(*answers: bytes) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Something that answers each command once; the options that lead there, and what was asked."""
    asked: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as threads:
        server.settimeout(60)

        def answer() -> None:
            for text in answers:
                connection, _ = server.accept()
                with connection:
                    with connection.makefile("rb") as request:
                        head = b"".join(iter(request.readline, b"\r\n"))
                        length = re.search(rb"content-length: (\d+)", head.lower())
                        request.read(int(length[1]) if length else 0)
                    assert f"Authorization: Bearer {FOREIGN}\r\n".encode() in head
                    asked.append(head.split(b" ")[1].decode())
                    connection.sendall(b"HTTP/1.1 " + text)

        answering = threads.submit(answer)
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        yield ("--admin-url", url, "--admin-key", FOREIGN), asked
        answering.result(timeout=60)
