"""Tells a Redis that does not answer in time from other failures of redis-py's clients."""

from redis.exceptions import TimeoutError as RedisTimeout


def is_timeout(error: BaseException) -> bool:
    """Return whether a call failed because Redis did not answer in time.

    If the time was up while a connection was made, redis-py raises `ConnectionError` from that.
    """
    kinds = TimeoutError | RedisTimeout
    return isinstance(error, kinds) or isinstance(error.__cause__, kinds)
