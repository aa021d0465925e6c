"""Counts the large answers of a call until the caller has read them or has gone."""

from collections.abc import Callable, Hashable

from gateway.http.unsent_answers import LARGE_BYTES, UnsentAnswers


class HeldAnswers:
    """The bytes that the answers of one call hold under the caller's key."""

    def __init__(
        self, unsent: UnsentAnswers, key: Hashable, *, is_over: Callable[[], bool]
    ) -> None:
        self._unsent = unsent
        self._key = key
        self._is_over = is_over
        self._bytes = 0

    async def hold(self, size: int, deadline: float) -> int:
        """Wait for room for an answer; return the bytes that are held for it.

        Raises:
            Overloaded: there is no room until `deadline`.
        """
        if size <= LARGE_BYTES:
            return 0
        # grpcio copies the bytes that it sends.
        held = await self._unsent.hold(self._key, 2 * size, deadline)
        self._bytes += held
        if self._is_over():
            self.release(self._bytes)
        return held

    def release(self, held: int) -> None:
        """Release the bytes of an answer that was sent; a call that has ended holds none."""
        held = min(held, self._bytes)
        if held:
            self._bytes -= held
            self._unsent.release(self._key, held)

    def end(self) -> None:
        """Release all bytes."""
        self.release(self._bytes)
