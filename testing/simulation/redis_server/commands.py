"""Implements the commands on keys, strings, lists, hashes, sets and sorted sets.

The set of commands and options is the one that the product uses. The server raises
`NotImplementedError` for others, so that a simulation cannot pass by mistake.
"""

from collections.abc import Callable, Sequence
from enum import Flag, auto
from math import inf
from typing import Final, NamedTuple

from testing.simulation.redis_server.data import RedisData
from testing.simulation.redis_server.resp import OK, Members, RedisError, Reply, Scored
from testing.simulation.redis_server.values import Hash, MemberSet, SortedSet

Arguments = Sequence[bytes]
_NOT_AN_INTEGER: Final = "ERR value is not an integer or out of range"
_SYNTAX: Final = "ERR syntax error"
_INT64: Final = 2**63


class Effect(Flag):
    """Says what a command may do; a server that refuses some commands goes by this."""

    NONE = 0
    WRITES = auto()
    GROWS = auto()
    """It may need more memory."""


class Command(NamedTuple):
    """A command on the data. `least` is the number of arguments that it must have."""

    run: Callable[[RedisData, Arguments], Reply]
    least: int
    most: int | None
    effect: Effect


COMMANDS: Final[dict[bytes, Command]] = {}
_Run = Callable[[RedisData, Arguments], Reply]


def command(
    name: bytes, least: int, most: int | None = None, effect: Effect = Effect.NONE
) -> Callable[[_Run], _Run]:
    """Register a function as the command `name`, with at least `least` arguments."""

    def register(run: _Run) -> _Run:
        COMMANDS[name] = Command(run, least, most, effect)
        return run

    return register


WRITES: Final = Effect.WRITES
GROWS: Final = Effect.WRITES | Effect.GROWS


def integer(text: bytes) -> int:
    """Parse an integer of 64 bits.

    Raises:
        RedisError: it is none.
    """
    try:
        value = int(text)
    except ValueError:
        raise RedisError(_NOT_AN_INTEGER) from None
    if text != b"%d" % value or not -_INT64 <= value < _INT64:
        raise RedisError(_NOT_AN_INTEGER)
    return value


@command(b"DBSIZE", 0, 0)
def _dbsize(data: RedisData, _: Arguments) -> Reply:
    return len(data)


@command(b"FLUSHALL", 0, 1, WRITES)
def _flushall(data: RedisData, _: Arguments) -> Reply:
    data.clear()
    return OK


@command(b"TIME", 0, 0)
def _time(data: RedisData, _: Arguments) -> Reply:
    microseconds = int(data.now * 1e6)
    return [b"%d" % part for part in divmod(microseconds, 1_000_000)]


@command(b"DEL", 1, effect=WRITES)
def _del(data: RedisData, keys: Arguments) -> Reply:
    return sum(data.peek(key) is not None and data.delete(key) for key in keys)


@command(b"PTTL", 1, 1)
def _pttl(data: RedisData, arguments: Arguments) -> Reply:
    if data.peek(arguments[0]) is None:
        return -2
    end = data.end(arguments[0])
    return -1 if end is None else max(0, end - data.now_ms)


@command(b"EXPIRE", 2, 3, WRITES)
def _expire(data: RedisData, arguments: Arguments) -> Reply:
    return _end_at(data, arguments, data.now_ms + integer(arguments[1]) * 1000)


@command(b"PEXPIRE", 2, 3, WRITES)
def _pexpire(data: RedisData, arguments: Arguments) -> Reply:
    return _end_at(data, arguments, data.now_ms + integer(arguments[1]))


@command(b"PEXPIREAT", 2, 3, WRITES)
def _pexpireat(data: RedisData, arguments: Arguments) -> Reply:
    return _end_at(data, arguments, integer(arguments[1]))


def _end_at(data: RedisData, arguments: Arguments, end: int) -> Reply:
    key, option = arguments[0], b"".join(arguments[2:]).upper()
    if option not in (b"", b"GT"):
        raise NotImplementedError(f"the simulated Redis does not know EXPIRE {option!r}")
    if data.peek(key) is None:
        return 0
    present = data.end(key)
    if option == b"GT" and (present is None or end <= present):
        return 0
    data.end_at(key, end)
    return 1


@command(b"GET", 1, 1)
def _get(data: RedisData, arguments: Arguments) -> Reply:
    return data.find(arguments[0], bytes)


@command(b"MGET", 1)
def _mget(data: RedisData, keys: Arguments) -> Reply:
    values = map(data.peek, keys)
    return [value if isinstance(value, bytes) else None for value in values]


@command(b"SET", 2, effect=GROWS)
def _set(data: RedisData, arguments: Arguments) -> Reply:
    key, value, *rest = arguments
    options = [option.upper() for option in rest]
    end = None
    while options:
        match options:
            case [b"NX", *options]:
                if data.peek(key) is not None:
                    return None
            case [b"PX" | b"EX" as unit, number, *options]:
                length = integer(number) * (1000 if unit == b"EX" else 1)
                if length <= 0:
                    raise RedisError("ERR invalid expire time in 'set' command")
                end = data.now_ms + length
            case _:
                raise NotImplementedError(f"the simulated Redis does not know SET {options}")
    data.put(key, value)
    data.end_at(key, end)
    return OK


@command(b"INCR", 1, 1, GROWS)
def _incr(data: RedisData, arguments: Arguments) -> Reply:
    return _add(data, arguments[0], 1)


@command(b"INCRBY", 2, 2, GROWS)
def _incrby(data: RedisData, arguments: Arguments) -> Reply:
    return _add(data, arguments[0], integer(arguments[1]))


@command(b"DECRBY", 2, 2, GROWS)
def _decrby(data: RedisData, arguments: Arguments) -> Reply:
    return _add(data, arguments[0], -integer(arguments[1]))


def _add(data: RedisData, key: bytes, change: int) -> int:
    present = data.find(key, bytes)
    value = _within((0 if present is None else integer(present)) + change)
    data.put(key, b"%d" % value)
    return value


def _within(value: int) -> int:
    if not -_INT64 <= value < _INT64:
        raise RedisError("ERR increment or decrement would overflow")
    return value


@command(b"LPUSH", 2, effect=GROWS)
def _lpush(data: RedisData, arguments: Arguments) -> Reply:
    items = data.make(arguments[0], list)
    items[:0] = reversed(arguments[1:])
    return len(items)


@command(b"RPUSH", 2, effect=GROWS)
def _rpush(data: RedisData, arguments: Arguments) -> Reply:
    items = data.make(arguments[0], list)
    items += arguments[1:]
    return len(items)


@command(b"LRANGE", 3, 3)
def _lrange(data: RedisData, arguments: Arguments) -> Reply:
    wanted = integer(arguments[1]), integer(arguments[2])
    items = data.read(arguments[0], list)
    return items[_slice(*wanted, len(items))]


@command(b"LTRIM", 3, 3, WRITES)
def _ltrim(data: RedisData, arguments: Arguments) -> Reply:
    wanted = integer(arguments[1]), integer(arguments[2])
    items = data.find(arguments[0], list)
    if items is not None:
        items[:] = items[_slice(*wanted, len(items))]
        data.delete_if_empty(arguments[0])
    return OK


def _slice(first: int, last: int, size: int) -> slice:
    """Return a range of Redis, whose end is included, as a slice."""
    first = max(0, first + size if first < 0 else first)
    return slice(first, max(first, last + size + 1 if last < 0 else last + 1))


@command(b"HSET", 3, effect=GROWS)
def _hset(data: RedisData, arguments: Arguments) -> Reply:
    if len(arguments) % 2 == 0:
        raise RedisError("ERR wrong number of arguments for 'hset' command")
    fields = data.make(arguments[0], Hash)
    before = len(fields)
    fields.update(zip(arguments[1::2], arguments[2::2], strict=True))
    return len(fields) - before


@command(b"HGET", 2, 2)
def _hget(data: RedisData, arguments: Arguments) -> Reply:
    return data.read(arguments[0], Hash).get(arguments[1])


@command(b"HMGET", 2)
def _hmget(data: RedisData, arguments: Arguments) -> Reply:
    fields = data.read(arguments[0], Hash)
    return [fields.get(name) for name in arguments[1:]]


@command(b"HGETALL", 1, 1)
def _hgetall(data: RedisData, arguments: Arguments) -> Reply:
    return dict(data.read(arguments[0], Hash))


@command(b"HSTRLEN", 2, 2)
def _hstrlen(data: RedisData, arguments: Arguments) -> Reply:
    return len(data.read(arguments[0], Hash).get(arguments[1], b""))


@command(b"HDEL", 2, effect=WRITES)
def _hdel(data: RedisData, arguments: Arguments) -> Reply:
    fields = data.find(arguments[0], Hash)
    if fields is None:
        return 0
    deleted = sum(fields.pop(name, None) is not None for name in arguments[1:])
    data.delete_if_empty(arguments[0])
    return deleted


@command(b"HINCRBY", 3, 3, GROWS)
def _hincrby(data: RedisData, arguments: Arguments) -> Reply:
    key, name, change = arguments
    step = integer(change)
    present = data.read(key, Hash).get(name, b"0")
    try:
        value = _within(integer(present) + step)
    except RedisError as error:
        if str(error) == _NOT_AN_INTEGER:
            raise RedisError("ERR hash value is not an integer") from None
        raise
    data.make(key, Hash)[name] = b"%d" % value
    return value


@command(b"SADD", 2, effect=GROWS)
def _sadd(data: RedisData, arguments: Arguments) -> Reply:
    members = data.make(arguments[0], MemberSet)
    before = len(members)
    members.update(dict.fromkeys(arguments[1:]))
    return len(members) - before


@command(b"SREM", 2, effect=WRITES)
def _srem(data: RedisData, arguments: Arguments) -> Reply:
    members = data.find(arguments[0], MemberSet)
    if members is None:
        return 0
    before = len(members)
    for member in arguments[1:]:
        members.pop(member, None)
    removed = before - len(members)
    data.delete_if_empty(arguments[0])
    return removed


@command(b"SMEMBERS", 1, 1)
def _smembers(data: RedisData, arguments: Arguments) -> Reply:
    return Members(list(data.read(arguments[0], MemberSet)))


@command(b"ZADD", 3, effect=GROWS)
def _zadd(data: RedisData, arguments: Arguments) -> Reply:
    if len(arguments) % 2 == 0:
        raise RedisError(_SYNTAX)
    scores = [_score(text, "ERR value is not a valid float") for text in arguments[1::2]]
    members = data.make(arguments[0], SortedSet)
    pairs = zip(arguments[2::2], scores, strict=True)
    return sum([members.add(member, score) for member, score in pairs])


@command(b"ZREM", 2, effect=WRITES)
def _zrem(data: RedisData, arguments: Arguments) -> Reply:
    members = data.find(arguments[0], SortedSet)
    if members is None:
        return 0
    removed = sum([members.remove(member) for member in arguments[1:]])
    data.delete_if_empty(arguments[0])
    return removed


@command(b"ZCARD", 1, 1)
def _zcard(data: RedisData, arguments: Arguments) -> Reply:
    return len(data.read(arguments[0], SortedSet))


@command(b"ZRANGE", 3, 4)
def _zrange(data: RedisData, arguments: Arguments) -> Reply:
    key, first, last, *options = arguments
    if [option.upper() for option in options] not in ([], [b"WITHSCORES"]):
        raise NotImplementedError(f"the simulated Redis does not know ZRANGE {options}")
    wanted = integer(first), integer(last)
    members = data.read(key, SortedSet)
    found = members.ordered[_slice(*wanted, len(members))]
    if options:
        return Scored([(member, score) for score, member in found])
    return [member for _, member in found]


@command(b"ZRANGEBYSCORE", 3, 3)
def _zrangebyscore(data: RedisData, arguments: Arguments) -> Reply:
    error = "ERR min or max is not a float"
    least, most = [_score(text, error) for text in arguments[1:]]
    members = data.read(arguments[0], SortedSet)
    return [member for score, member in members.ordered if least <= score <= most]


def _score(text: bytes, error: str) -> float:
    try:
        score = float(text)
    except ValueError:
        raise RedisError(error) from None
    if score != score or (abs(score) == inf and text.lstrip(b"+-") != b"inf"):  # noqa: PLR0124
        raise RedisError(error)
    return score
