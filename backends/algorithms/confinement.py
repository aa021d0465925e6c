"""Limits the calling process: its memory, priority, child processes, signals and lifetime.

The limits protect against mistakes in a model owner's code. They are not a sandbox, because the
code can use files and the network.
"""

import contextlib
import ctypes
import os
import platform
import resource
import signal
import struct
from pathlib import Path
from typing import Final

_PDEATHSIG, _NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 1, 38, 22, 2
# With this niceness, a process has a tenth of the scheduling weight of threads that run models.
NICENESS: Final = 10
_MOST_FILES = 256

# Constants of classic BPF, and the offsets of the system call, of the architecture and of the first
# argument's low half in `struct seccomp_data`
# (https://docs.kernel.org/userspace-api/seccomp_filter.html).
_LOAD, _IF_EQUAL, _IF_ANY, _RETURN = 0x20, 0x15, 0x45, 0x06
_CALL, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_ALLOW, _EPERM, _ENOSYS = 0x7FFF0000, 0x00050001, 0x00050026
_CLONE_THREAD = 0x00010000
# For each kind of machine: the audit architecture, the number of the system call `clone`, the
# numbers of `kill` and `tgkill`, and the numbers of `fork` and `vfork` if the machine has these
# calls.
_CALLS = {
    "x86_64": (0xC000003E, 56, (62, 234), (57, 58)),
    "aarch64": (0xC00000B7, 220, (129, 131), ()),
}
_CLONE3 = 435


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def confine(*, parent: int, memory_bytes: int) -> None:
    """Limit this process for the rest of its life, and end it when process `parent` ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    os.setpriority(os.PRIO_PROCESS, 0, max(NICENESS, os.getpriority(os.PRIO_PROCESS, 0)))
    with contextlib.suppress(OSError):  # if memory is short, the kernel kills this process first
        Path("/proc/self/oom_score_adj").write_text("1000")
    # Limits allocations. A limit on the address space would count libraries and mapped files, too.
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (_MOST_FILES, _MOST_FILES))
    _forbid_processes(libc)


def _forbid_processes(libc: ctypes.CDLL) -> None:
    """Forbid starting processes and signalling other processes. Threads can still start."""
    calls = _CALLS.get(platform.machine())
    if calls is None:
        return
    program = _program(*calls)
    code = ctypes.create_string_buffer(b"".join(program))
    rules = _Program(len(program), ctypes.cast(code, ctypes.c_void_p))
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    # A kernel without seccomp filters refuses this call. Code can then start child processes, which
    # the backend kills with the process group.
    libc.prctl(_SECCOMP, _FILTER, ctypes.byref(rules), 0, 0)


def _program(
    architecture: int, clone: int, signals: tuple[int, ...], starts: tuple[int, ...]
) -> list[bytes]:
    program = [
        _instruction(_LOAD, _ARCHITECTURE),
        _instruction(_IF_EQUAL, architecture, otherwise=0, then=1),
        _instruction(_RETURN, _ALLOW),
        _instruction(_LOAD, _CALL),
        # A filter cannot read the flags of `clone3`, so report this call as missing. Libraries then
        # use `clone`.
        *_rule(_CLONE3, [_instruction(_RETURN, _ENOSYS)]),
    ]
    for call in starts:
        program += _rule(call, [_instruction(_RETURN, _EPERM)])
    program += _rule(clone, _unless(_instruction(_IF_ANY, _CLONE_THREAD, then=1)))
    for call in signals:
        program += _rule(call, _unless(_instruction(_IF_EQUAL, os.getpid(), then=1)))
    return [*program, _instruction(_RETURN, _ALLOW)]


def _rule(call: int, body: list[bytes]) -> list[bytes]:
    return [_instruction(_IF_EQUAL, call, otherwise=len(body)), *body]


def _unless(test: bytes) -> list[bytes]:
    """Return instructions that refuse a system call whose first argument fails `test`."""
    refuse, allow = _instruction(_RETURN, _EPERM), _instruction(_RETURN, _ALLOW)
    return [_instruction(_LOAD, _FIRST_ARGUMENT), test, refuse, allow]


def _instruction(code: int, value: int, *, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("HBBI", code, then, otherwise, value)
