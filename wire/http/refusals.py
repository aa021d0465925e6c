"""Defines why the server refuses a request that no application sees."""


class Refusal(Exception):
    """Ends a connection with an answer of this status. `detail` is a sentence that says why."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


class FramingTooLarge(Refusal):
    """The chunks of a body have too much beside their data."""
