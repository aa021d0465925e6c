"""Holds the keys of a simulated Redis, which outlive its process."""

from collections.abc import Callable
from typing import TypeVar

from testing.simulation.redis_server.resp import RedisError
from testing.simulation.redis_server.values import Value

_Value = TypeVar("_Value", bound=Value)


class RedisData:
    """Maps keys to values, and to the times when they expire.

    `clock` returns the seconds since 1970 on the server's machine.
    """

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._values: dict[bytes, Value] = {}
        self._ends: dict[bytes, int] = {}
        self.changed: dict[bytes, None] = {}
        """Keys that blocked clients must look at again. The server empties it."""
        self.expired = 0
        """How many keys have expired since the start."""

    def __len__(self) -> int:
        return len(self.keys())

    def snapshot(self) -> "RedisData":
        """Return an independent copy, as a file on the disk would be."""
        copy = RedisData(clock=self._clock)
        copy.restore(self)
        return copy

    def restore(self, snapshot: "RedisData") -> None:
        """Replace all keys by those of `snapshot`, which stays as it is."""
        self._values = {
            key: value if isinstance(value, bytes) else value.copy()
            for key, value in snapshot._values.items()  # noqa: SLF001 - another of this class
        }
        self._ends = dict(snapshot._ends)  # noqa: SLF001

    def clear(self) -> None:
        """Delete all keys."""
        self.changed |= dict.fromkeys(self._values)
        self._values, self._ends = {}, {}

    @property
    def now(self) -> float:
        """The seconds since 1970."""
        return self._clock()

    @property
    def now_ms(self) -> int:
        """The milliseconds since 1970."""
        return int(self._clock() * 1000)

    def keys(self) -> list[bytes]:
        """Return the keys that have not expired, in the order in which they were created."""
        return [key for key in list(self._values) if self.peek(key) is not None]

    def peek(self, key: bytes) -> Value | None:
        """Return the value of any type, or `None`."""
        if key in self._ends and self.now_ms > self._ends[key]:
            self.delete(key)
            self.expired += 1
        return self._values.get(key)

    def find(self, key: bytes, kind: type[_Value]) -> _Value | None:
        """Return the value of the type `kind`, or `None`.

        Raises:
            RedisError: the value has another type.
        """
        value = self.peek(key)
        if value is not None and not isinstance(value, kind):
            raise RedisError("WRONGTYPE Operation against a key holding the wrong kind of value")
        return value

    def read(self, key: bytes, kind: type[_Value]) -> _Value:
        """Return the value of the type `kind`, or an empty one that is not stored."""
        value = self.find(key, kind)
        return kind() if value is None else value

    def make(self, key: bytes, kind: type[_Value]) -> _Value:
        """Return the value of the type `kind`, which is created if there is none."""
        value = self.find(key, kind)
        if value is None:
            value = self._values[key] = kind()
        return value

    def put(self, key: bytes, value: Value) -> None:
        """Set the value. The time when the key expires stays as it is."""
        self._values[key] = value
        self.changed[key] = None

    def delete(self, key: bytes) -> bool:
        """Delete the key. Return whether it was there."""
        self._ends.pop(key, None)
        if self._values.pop(key, None) is None:
            return False
        self.changed[key] = None
        return True

    def delete_if_empty(self, key: bytes) -> None:
        """Delete the key if its value is empty, as Redis does after each command."""
        if not self._values.get(key):
            self.delete(key)

    def end(self, key: bytes) -> int | None:
        """Return when the key expires, in milliseconds since 1970; `None` if it does not."""
        return self._ends.get(key)

    def end_at(self, key: bytes, end: int | None) -> None:
        """Let the key expire at `end`. It is deleted at once if that is past."""
        if end is None:
            self._ends.pop(key, None)
        elif end <= self.now_ms:
            self.delete(key)
        else:
            self._ends[key] = end
