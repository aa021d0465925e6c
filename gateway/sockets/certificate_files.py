"""Reads certificates and keys from PEM files, and follows their replacement."""

import asyncio
import base64
import logging
import re
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from sluicegate.gateway.errors import ConfigurationError

_log = logging.getLogger(__name__)
LOOK_INTERVAL: Final = 5.0
"""Seconds between two checks of the files."""
Signature = tuple[tuple[int, int, int], ...]
# OpenSSL reads all of these names.
_PEM: Final = re.compile(
    r"-----BEGIN ((?:TRUSTED |X509 )?CERTIFICATE)-----(.+?)-----END \1-----", re.DOTALL
)
_VERSION, _UTC_TIME = 0xA0, 0x17  # tags of DER


def signature_of(paths: tuple[Path, ...]) -> Signature:
    """Return a value that is another after any of the files was replaced.

    Raises:
        ConfigurationError: one of them cannot be read.
    """
    return tuple(map(_signature, paths))


def load_certificate(context: ssl.SSLContext, certificate: Path, key: Path | None) -> None:
    """Have `context` show a certificate; its file has the key, too, where there is no `key`.

    Raises:
        ConfigurationError: the files cannot be used.
    """
    try:
        # An empty password, else OpenSSL would prompt for one at the terminal.
        context.load_cert_chain(certificate, key, password=lambda: "")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            detail = f"it does not belong to the key in `{key or certificate}`"
        else:
            detail = "it holds no certificate in PEM, or its key is missing or has a password"
        raise ConfigurationError(detail, file=str(certificate)) from error
    except OSError as error:  # it went since it was looked at, or is not for us to read
        named = str(certificate if key is None else f"{certificate}` or `{key}")
        detail = f"the file cannot be read: {error.strerror}"
        raise ConfigurationError(detail, file=named) from error


def first_certificate(chain: str) -> str:
    """Return the first certificate of a file, PEM: that of the server itself.

    Raises:
        ValueError: there is none.
    """
    return ssl.DER_cert_to_PEM_cert(_first_der(chain))


def expiry_of(chain: str) -> float:
    """Return when the first certificate of `chain`, PEM, expires, in seconds since the epoch.

    The library shows the dates of certificates only that it has verified.

    Raises:
        ValueError: there is none.
    """
    der = _first_der(chain)
    at = _element(der, _element(der, 0)[1])[1]  # into the certificate, and what of it is signed
    tag, _, end = _element(der, at)
    at = end if tag == _VERSION else at
    for _ in ("serial number", "algorithm", "issuer"):
        _, _, at = _element(der, at)
    _, not_before, _ = _element(der, at)
    tag, begin, end = _element(der, _element(der, not_before)[2])
    form = "%y%m%d%H%M%SZ" if tag == _UTC_TIME else "%Y%m%d%H%M%SZ"
    return datetime.strptime(der[begin:end].decode(), form).replace(tzinfo=UTC).timestamp()


async def follow_files(
    renew: Callable[[], bool],
    interval: float,
    *,
    on_outcome: Callable[[bool], object] = lambda _: None,
) -> None:
    """Have files be read when they changed, every `interval` seconds, until cancelled.

    `renew` reads them if they are others than those read last, and returns whether they are. Where
    they cannot be used, it raises a `ConfigurationError` and changes nothing.
    `on_outcome` is called after each look, with whether the files can be used.
    """
    trouble = ""
    while True:
        await asyncio.sleep(interval)
        try:
            is_new = await asyncio.to_thread(renew)
        except ConfigurationError as error:
            # Half of a rotation looks like this: the next look finds the other half.
            reason = f"{error.file}: {error.detail}"
            if reason != trouble:
                _log.warning("the certificates stay as they were", extra={"reason": reason})
            trouble = reason
        else:
            trouble = ""
            if is_new:
                _log.info("the certificates were read again")
        on_outcome(not trouble)


def _first_der(chain: str) -> bytes:
    found = _PEM.search(chain)
    if found is None:
        raise ValueError("there is no certificate")
    der = base64.b64decode(found[2])
    return der[: _element(der, 0)[2]]  # what says whom a trusted one is trusted for follows


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """Return tag, begin and end of the content of the element at `at`."""
    try:
        size, begin = der[at + 1], at + 2
    except IndexError as error:
        raise ValueError("the certificate is cut off") from error
    if size & 0x80:
        begin += size & 0x7F
        size = int.from_bytes(der[at + 2 : begin])
    return der[at], begin, begin + size


def _signature(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError as error:
        detail = f"the file cannot be read: {error.strerror}"
        raise ConfigurationError(detail, file=str(path)) from error
    return found.st_mtime_ns, found.st_ino, found.st_size
