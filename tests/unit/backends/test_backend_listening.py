"""The end of accepting in a backend."""

import socket
import sys

import pytest

from backends.listening import empty_queue

pytestmark = pytest.mark.anyio


@pytest.mark.skipif(sys.platform != "linux", reason="needs socket filters of Linux")
async def test_where_no_filter_is_taken_the_end_of_accepting_goes_on_without() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, 44, 1)  # SO_LOCK_FILTER: none is taken any more

        await empty_queue(listener)
