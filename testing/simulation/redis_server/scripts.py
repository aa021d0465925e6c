"""Runs Lua scripts as Redis does, with Lua 5.1."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Final

from lupa import lua51  # type: ignore[import-untyped]

from testing.simulation.redis_server.resp import (
    Absent,
    Members,
    RedisError,
    Reply,
    Scored,
    Status,
)

Call = Callable[[list[bytes]], Reply]
"""Runs a command of a script. Raises `RedisError` for an error reply."""
# Scripts must not leave anything behind for later scripts, so globals cannot be set.
_GUARD: Final = """
function(call, pcall, sha1hex)
  redis = {call = call, pcall = pcall, sha1hex = sha1hex}
  redis.error_reply = function(text) return {err = text} end
  redis.status_reply = function(text) return {ok = text} end
  local function refuse(_, name) error('Script attempted to access global variable ' .. name, 0) end
  setmetatable(_G, {__index = refuse, __newindex = refuse})
end
"""


class ScriptEngine:
    """Keeps the scripts of a server process, and runs them one at a time."""

    def __init__(self) -> None:
        self._lua: Any = lua51.LuaRuntime(encoding=None, unpack_returned_tuples=True)
        self._functions: dict[bytes, Any] = {}
        self._call: Call = _refuse
        self._lua.eval(_GUARD)(self._run, self._try, _sha1hex)

    def load(self, script: bytes) -> bytes:
        """Compile a script, and return its digest.

        Raises:
            RedisError: the script has a syntax error.
        """
        digest = _sha1hex(script)
        if digest not in self._functions:
            try:
                function = self._lua.eval(b"function(KEYS, ARGV) " + script + b"\nend")
            except lua51.LuaError:
                raise RedisError("ERR Error compiling script (new function)") from None
            self._functions[digest] = function
        return digest

    def run(self, digest: bytes, keys: Sequence[bytes], values: Sequence[bytes], call: Call) -> Any:
        """Return the reply of a script. `call` runs its commands.

        Raises:
            RedisError: the script is unknown or has failed. What it has written stays.
        """
        function = self._functions.get(digest.lower())
        if function is None:
            raise RedisError("NOSCRIPT No matching script.")
        self._call = call
        try:
            result = function(self._lua.table_from(keys), self._lua.table_from(values))
            return _reply(result)
        except lua51.LuaError as error:
            raise RedisError(
                f"ERR {str(error).splitlines()[0]} script: {digest.decode()}"
            ) from None
        except RedisError as error:
            raise RedisError(f"{error} script: {digest.decode()}") from None
        finally:
            self._call = _refuse

    def _run(self, *arguments: Any) -> Any:
        return self._to_lua(self._call([_argument(each) for each in arguments]))

    def _try(self, *arguments: Any) -> Any:
        try:
            return self._run(*arguments)
        except RedisError as error:
            return self._lua.table_from({b"err": str(error).encode()})

    def _to_lua(self, reply: Reply) -> Any:  # noqa: PLR0911 - one for each type
        """Return a reply as the values that a script gets, which are those of RESP2."""
        match reply:
            case Status():
                return self._lua.table_from({b"ok": bytes(reply)})
            case bytes() | int():
                return reply
            case None | Absent():
                return False
            case float():
                return b"%.17g" % reply
            case Members(items):
                return self._lua.table_from(items)
            case Scored(items):
                return self._list([value for pair in items for value in pair])
            case dict():
                return self._list([value for pair in reply.items() for value in pair])
            case _:
                return self._list(reply)

    def _list(self, items: Sequence[Reply]) -> Any:
        return self._lua.table_from([self._to_lua(item) for item in items])


def _refuse(_: list[bytes]) -> Reply:
    raise RedisError("ERR no script is running")


def _sha1hex(text: bytes) -> bytes:
    return hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()


def _argument(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return b"%.17g" % value
    raise RedisError("ERR Lua redis lib command arguments must be strings or integers")


def _reply(value: Any) -> Reply:
    """Return what a script has returned as a reply."""
    match value:
        case bool():
            return 1 if value else None
        case None | bytes():
            return value
        case int() | float():
            return int(value)  # Redis drops the fraction
        case _:
            return _reply_of_table(value)


def _reply_of_table(value: Any) -> Reply:
    if (error := value[b"err"]) is not None:
        raise RedisError(error.decode(errors="replace"))
    if (status := value[b"ok"]) is not None:
        return Status(status)
    items: list[Reply] = []
    while (item := value[len(items) + 1]) is not None:
        items.append(_reply(item))
    return items
