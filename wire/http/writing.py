"""Writes the answers of an event-loop iteration in one packet, and large ones in pieces.

A packet for each part of an answer would cost a system call, and wake the client, each time.
"""

import asyncio
from collections.abc import Callable, Hashable
from typing import Final

LARGE_BYTES: Final = 128 * 1024
"""Bytes above which an answer is sent in pieces."""
WATCHED_BYTES: Final = 64 * 1024
"""Bytes above which a write is reported at once."""
# A transport with more unsent bytes than this pauses its writer.
_PIECE_BYTES: Final = 256 * 1024


class WriteCoalescer:
    """Holds back the writes of connections until the event-loop iteration ends.

    It calls `before` first, so that the steps that must precede an answer are done.
    """

    def __init__(self, *, before: Callable[[], None] = lambda: None) -> None:
        self._before = before
        self.held: list[AnswerWriter] = []
        """Those that have something to write; `release` is to be called soon after the first."""

    def release(self) -> None:
        """Write everything. If `before` fails, end the connections."""
        held, self.held = self.held, []
        try:
            self._before()
        except BaseException:  # whatever it was, nobody must wait for what will not come
            for writer in held:
                writer.transport.abort()
            raise
        for writer in held:
            writer.flush()


class AnswerWriter:
    """Gathers what is written to one transport until `coalescer` releases it."""

    def __init__(
        self,
        transport: asyncio.Transport,
        coalescer: WriteCoalescer,
        on_large_write: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.transport = transport
        self.is_paused = False
        """Whether the peer does not read, so that nothing should be written."""
        self.has_ended = False
        self.holder: Hashable = None
        """The key that holds bytes of a budget for the answer that is sent in pieces."""
        self._loop = asyncio.get_running_loop()
        self._coalescer = coalescer
        self._on_large_write = on_large_write
        self._parts: list[bytes] = []
        self._unwritten_bytes = 0
        """The rest of an answer that is sent in pieces."""
        self._resumed = asyncio.Event()

    def write(self, data: bytes) -> None:
        """Write `data` when the event-loop iteration ends."""
        if not self._parts:
            held = self._coalescer.held
            if not held:
                self._loop.call_soon(self._coalescer.release)
            held.append(self)
        self._parts.append(data)
        if len(data) > WATCHED_BYTES and not self.is_closing():
            self._on_large_write(len(data))

    def write_now(self, data: bytes) -> None:
        """Write `data` at once, or behind waiting parts; it needs no `before` of the coalescer."""
        if self._parts:
            self._parts.append(data)
        elif not self.is_closing():
            self.transport.write(data)

    async def write_in_pieces(self, head: bytes, body: bytes, holder: Hashable) -> None:
        """Write a large answer, each piece once the peer has read most of what came before.

        `holder` is the key that holds bytes of the budget for it.
        """
        self.write(head)
        self._coalescer.release()
        left = memoryview(body)
        self.holder = holder
        try:
            while left and not self.is_closing():
                piece, left = left[:_PIECE_BYTES], left[_PIECE_BYTES:]
                self._unwritten_bytes = len(left)
                self.transport.write(piece)
                if self.is_paused:
                    await self.drain()
                else:
                    await asyncio.sleep(0)  # give other tasks a turn
        finally:
            self._unwritten_bytes = 0
            self.holder = None

    async def drain(self) -> None:
        """Wait until the peer reads, or the connection is lost."""
        if self.is_paused:
            await self._resumed.wait()

    def pause(self) -> None:
        """Note that the peer does not read."""
        self.is_paused = True
        self._resumed.clear()

    def resume(self) -> None:
        """Note that the peer reads again."""
        self.is_paused = False
        self._resumed.set()

    def lose(self) -> None:
        """Note that the connection is lost."""
        self.resume()
        del self._on_large_write  # it refers to the connection

    def end(self) -> None:
        """Say that nothing follows; the peer may still send."""
        self._release()
        self.has_ended = True
        # TLS has no half-closed connections: there the length of the answer says where it ends.
        if self.transport.can_write_eof() and not self.transport.is_closing():
            self.transport.write_eof()

    def close(self) -> None:
        """Send what was written, and close the connection."""
        self._release()
        # A TLS transport that is closed a second time drops its state, and other calls then fail.
        if not self.transport.is_closing():
            self.transport.close()

    def is_closing(self) -> bool:
        """Whether nothing can be written any more."""
        return self.has_ended or self.transport.is_closing()

    def unsent_bytes(self) -> int:
        """Return how many bytes of answers wait in this process."""
        gathered = sum(map(len, self._parts)) + self._unwritten_bytes
        return self.transport.get_write_buffer_size() + gathered

    def flush(self) -> None:
        """Write what was gathered; called by the coalescer.

        A request that was given up may say something after the end: that is discarded, since a
        transport that raises would keep the coalescer from writing what other connections have.
        """
        parts, self._parts = self._parts, []
        if parts and not self.has_ended and not self.transport.is_closing():
            self.transport.write(parts[0] if len(parts) == 1 else b"".join(parts))

    def _release(self) -> None:
        if self._parts:
            self._coalescer.release()
