"""Estimates how long calls were on their way, of which neither side's clock alone tells anything.

A busy event loop, or a core that others have, leaves calls unread. Their callers wait meanwhile.
"""

import math

# Where no call was quicker for once to twice so many seconds, that is no delay any more: clocks
# drift apart, and stop while a machine is moved.
_SPAN = 5.0
_NOTICEABLE = 0.01
"""Seconds of delay that change nothing."""
_MOST_SENDERS = 4096


class _LeastDelay:
    """Holds the least delay of a sender's calls; the clocks differ by what is the same for all."""

    __slots__ = ("before", "least", "until")

    def __init__(self) -> None:
        self.least = self.before = math.inf
        self.until = -math.inf

    def update(self, delay: float, now: float) -> float:
        """Return the least delay of the last seconds, this one among them."""
        if now >= self.until:
            self.before = self.least if now < self.until + _SPAN else math.inf
            self.least, self.until = delay, now + _SPAN
        elif delay < self.least:
            self.least = delay
        return min(self.least, self.before)


class TransitEstimates:
    """Compares the delays of a sender's calls: what one took beyond the quickest, it waited.

    That is the base delay of LEDBAT (RFC 6817). All clocks are monotonic.
    """

    def __init__(self) -> None:
        self._senders: dict[int, _LeastDelay] = {}

    def waited(self, sender: int, sent: float, received: float) -> float:
        """Return the seconds that a call waited, 0 where they are few.

        `sent` is by the clock of `sender`, which is 0 where that is not told.
        """
        if not sender:
            return 0.0
        least = self._senders.get(sender)
        if least is None:
            if len(self._senders) >= _MOST_SENDERS:
                del self._senders[next(iter(self._senders))]
            least = self._senders[sender] = _LeastDelay()
        delay = received - sent
        waited = delay - least.update(delay, received)
        return waited if waited > _NOTICEABLE else 0.0
