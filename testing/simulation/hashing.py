"""Makes the order of sets depend on nothing but the run.

Python hashes strings by a secret, and objects by their addresses. Both differ from run to run.
"""

import builtins
import ctypes
import os
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any, Final

import msgspec

_FIXED_ADDRESSES: Final = 0x0040000
"""The flag of Linux's `personality` that loads a program at the same addresses each time."""
_ASK: Final = 0xFFFFFFFF


def fix_hashes() -> None:
    """Restart the program so that strings and addresses are hashed alike in each run.

    Programs call this first. It returns where that is so. Where the system refuses to fix the
    addresses, sets of objects that are hashed by address may have another order in another run.
    """
    system = ctypes.CDLL(None)
    persona = system.personality(_ASK)
    system.personality(persona | _FIXED_ADDRESSES)
    is_fixed = system.personality(_ASK) == persona
    if not is_fixed or os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - itself


class _Numbers:
    """Counts objects in the order in which they are hashed first."""

    def __init__(self) -> None:
        self._last = 0
        self._others: dict[int, tuple[object, int]] = {}
        """Objects without attributes of their own, which are kept so that none has their id."""

    def restart(self) -> None:
        """Count new objects from 1 again."""
        self._last = 0

    def of(self, numbered: Any) -> int:
        """Return the number of an object."""
        try:
            return int(numbered.number_in_run)
        except AttributeError:
            return self._new(numbered)

    def _new(self, numbered: Any) -> int:
        if id(numbered) in self._others:
            return self._others[id(numbered)][1]
        self._last += 1
        try:
            numbered.number_in_run = self._last
        except AttributeError:
            self._others[id(numbered)] = (numbered, self._last)
        return self._last


numbers: Final = _Numbers()
_real_build_class: Final = builtins.__build_class__
_by_address: Final[Any] = object.__hash__
_real_struct_hash: Final = msgspec.Struct.__hash__


def number(numbered: object) -> int:
    """Hash an object by its number; a method `__hash__`."""
    return numbers.of(numbered)


def class_builder(package: str) -> Callable[..., Any]:
    """Return what builds classes; a package's objects that have no hash are hashed by number."""

    def build(body: FunctionType, name: str, *bases: Any, **options: Any) -> Any:
        made = _real_build_class(body, name, *bases, **options)
        is_own = f"{body.__globals__.get('__name__')}.".startswith(f"{package}.")
        if is_own and getattr(made, "__hash__", None) is _by_address:
            made.__hash__ = number
        return made

    return build


def hash_struct(struct: msgspec.Struct) -> int:
    """Hash a struct by its values alone; msgspec includes the address of its class."""
    configuration = struct.__struct_config__
    if not (configuration.eq and configuration.frozen):
        return _real_struct_hash(struct)
    return hash(tuple(getattr(struct, name) for name in struct.__struct_fields__))
