"""Replaces the functions of Python by which a program reads time, chance, threads and the network.

Outside a simulation the replacements behave as the originals. `install` must be called before the
modules of the product are imported, because some keep functions as defaults of parameters.
"""

import _threading_local
import builtins
import concurrent.futures.thread
import contextlib
import fcntl
import io
import os
import queue
import random
import select
import socket
import sqlite3
import termios
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from testing.simulation import (
    clock,
    databases,
    disk,
    hashing,
    machines,
    randomness,
    sockets,
    threads,
)
from testing.simulation.scheduler import here

_installed: Final[list[tuple[Any, str, Any]]] = []
_CORES: Final = 2


def install(*, numbered: str = "sluicegate") -> None:
    """Replace the functions in this process; a second call does nothing.

    Objects of the package `numbered` that would be hashed by address are hashed by number, if their
    classes are created from now on.

    Raises:
        RuntimeError: this Python is too new.
    """
    if _installed:
        return
    threads.check_python()
    _replace_time_and_chance()
    _replace_threads()
    _replace_network_and_files()
    _replace(builtins, "__build_class__", hashing.class_builder(numbered))
    _replace(os, "getpid", _inside(os.getpid, lambda process: process.pid))
    _replace(os, "cpu_count", _inside(os.cpu_count, lambda _: _CORES))
    _replace(os, "sched_getaffinity", _getaffinity)
    _replace(os, "_exit", machines.exit_now)


def _replace_time_and_chance() -> None:
    for name, function in clock.REPLACEMENTS.items():
        _replace(time, name, function)
    for module, name in [(threading, "_time"), (queue, "time")]:
        _replace(module, name, time.monotonic)
    _replace(os, "urandom", randomness.urandom)
    _replace(random, "_urandom", randomness.urandom)
    _replace(random.Random, "seed", randomness.seed)
    _replace(msgspec.Struct, "__hash__", hashing.hash_struct)


def _replace_threads() -> None:
    for name in ("Lock", "_allocate_lock"):
        _replace(threading, name, threads.Lock)
    _replace(threading, "_CRLock", None)
    _replace(threading, "_start_new_thread", threads.start_new_thread)
    _replace(threading, "_set_sentinel", threads.set_sentinel)
    for name in ("get_ident", "get_native_id"):
        _replace(threading, name, threads.get_ident)
    _replace(threading, "local", _threading_local.local)
    _replace(_threading_local, "current_thread", threads.owner_of_locals)
    for numbered in (threading.Thread, concurrent.futures.Future):
        _replace(numbered, "__hash__", hashing.number)
    _replace(queue, "SimpleQueue", vars(queue)["_PySimpleQueue"])
    _replace(concurrent.futures.thread, "_global_shutdown_lock", threads.NoLock())


def _replace_network_and_files() -> None:
    _replace(socket, "socket", sockets.SocketFactory)
    for name in ("getaddrinfo", "gethostbyname", "gethostname"):
        _replace(socket, name, getattr(sockets, name))
    _replace(select, "poll", sockets.Poll)
    for name, function in disk.REPLACEMENTS.items():
        _replace(os, name, function)
    for module in (builtins, io):
        _replace(module, "open", disk.open_file)
    for module in (sqlite3, sqlite3.dbapi2):
        _replace(module, "connect", databases.connect)
    _replace(fcntl, "flock", _flock)
    _replace(fcntl, "ioctl", _ioctl)


def uninstall() -> None:
    """Put the original functions back."""
    while _installed:
        module, name, original = _installed.pop()
        setattr(module, name, original)


def _replace(module: Any, name: str, value: Any) -> None:
    _installed.append((module, name, getattr(module, name)))
    setattr(module, name, value)


def _inside(
    real: Callable[[], Any], simulated: Callable[[machines.Process], Any]
) -> Callable[[], Any]:
    def either() -> Any:
        strand = here.strand
        return real() if strand is None else simulated(strand.process)

    return either


_real_flock: Final = fcntl.flock
_real_ioctl: Final = fcntl.ioctl
_real_getaffinity: Final = os.sched_getaffinity
_LOCK_PAUSE: Final = 0.001


def _flock(file: Any, operation: int) -> None:
    """Lock a file. The wait for a lock takes virtual time."""
    strand = here.strand
    if strand is None:
        _real_flock(file, operation)
        return
    while True:
        with contextlib.suppress(BlockingIOError):
            _real_flock(file, operation | fcntl.LOCK_NB)
            break
        if operation & fcntl.LOCK_NB:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        clock.sleep(_LOCK_PAUSE)
    number = file if isinstance(file, int) else file.fileno()
    for machine in strand.process.machine.network.machines.values():
        for process in machine.processes:
            process.file_locks.pop(number, None)  # the number was used for another file
    if not operation & fcntl.LOCK_UN:
        strand.process.file_locks[number] = None


def _ioctl(file: Any, request: int, *args: Any) -> Any:
    if request == termios.TIOCOUTQ and isinstance(file, int):
        count = sockets.unconfirmed_bytes(file)
        if count is not None:
            return count.to_bytes(4, "little")
    return _real_ioctl(file, request, *args)


def _getaffinity(pid: int) -> set[int]:
    return _real_getaffinity(pid) if here.strand is None else {0}
