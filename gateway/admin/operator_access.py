"""Lets commands on the same machine find a running operators' listener.

While the listener runs, its data directory has a locked file, `operators.json`, with the listener's
address and a digest of its key. A command with `--data-dir` reads the address in this file, and
sends the key only to this address.
"""

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from time import monotonic, sleep

import msgspec

FILE = "operators.json"
KEY_FILE = "admin-key"
_log = logging.getLogger(__name__)
_WILDCARD_HOSTS = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - looked up, not bound
# The listener tries again for a while, because a command that reads the file locks it for a moment.
_LOCK_TIMEOUT, _LOCK_RETRY = 1.0, 0.02


class OperatorAccess(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the address of the operators' listener, and a digest of its key."""

    url: str
    key_digest: str
    certificate: str = ""
    """The path of the listener's certificate. Commands trust the certificate whatever host name it
    contains."""

    def takes(self, key: str) -> bool:
        """Return whether `key` is the listener's admin key."""
        return _digest(key) == self.key_digest


def access_to(host: str, port: int, key: str, *, certificate: Path | None = None) -> OperatorAccess:
    """Return how commands on this machine reach the listener that listens on `host` and `port`."""
    host = _WILDCARD_HOSTS.get(host, f"[{host}]" if ":" in host else host)
    scheme, file = ("http", "") if certificate is None else ("https", str(certificate.absolute()))
    return OperatorAccess(
        url=f"{scheme}://{host}:{port}", key_digest=_digest(key), certificate=file
    )


@contextlib.contextmanager
def publish_access(data_dir: Path, access: OperatorAccess) -> Iterator[None]:
    """Write `access` to the data directory, and keep the file locked during the `with` block."""
    with contextlib.ExitStack() as stack:
        try:
            descriptor = os.open(data_dir / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, descriptor)
            _lock(descriptor)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, msgspec.json.encode(access), 0)
        except OSError as error:
            _log.warning(
                "the listener's address cannot be saved in the data directory: give commands"
                " `--admin-url` and `--admin-key`",
                extra={"reason": str(error)},
            )
        yield


def read_access(data_dir: Path) -> OperatorAccess | None:
    """Return how to reach the listener that uses the data directory, or `None` if none runs.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        file = (data_dir / FILE).open("rb")
    except FileNotFoundError:
        return None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            try:
                return msgspec.json.decode(file.read(), type=OperatorAccess)
            except msgspec.DecodeError:
                return None  # the listener is writing the file right now
    return None


def read_key(data_dir: Path) -> str:
    """Return the admin key that `sluicegate up` has stored in the data directory, or "".

    Raises:
        OSError: the file cannot be read.
    """
    try:
        return (data_dir / KEY_FILE).read_text().strip()
    except FileNotFoundError:
        return ""


def _lock(descriptor: int) -> None:
    deadline = monotonic() + _LOCK_TIMEOUT
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if monotonic() >= deadline:
                raise
            sleep(_LOCK_RETRY)
        else:
            return


def _digest(key: str) -> str:
    return blake2b(key.encode(), digest_size=16, person=b"sluicegate.oper").hexdigest()
