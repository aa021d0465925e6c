"""Generates the secrets of API keys, checks their format, and hashes them for storage."""

import secrets
import string
import zlib
from hashlib import blake2b

SHORTEST = 16
LONGEST = 200
_PERSON = b"sluicegate.key"
_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
_RANDOM_CHARACTERS = 32
_CHECKSUM_CHARACTERS = 6


def digest_of_key(key: bytes) -> bytes:
    """Return the 32-byte hash of a key's secret. The secret itself is stored nowhere."""
    return blake2b(key, digest_size=32, person=_PERSON).digest()


def hash_key(key: str) -> str:
    """Return the result of `digest_of_key` in hexadecimal. The ledger stores this form."""
    return digest_of_key(key.encode()).hex()


def new_key(prefix: str = "sk") -> str:
    """Return a new secret: `prefix`, 190 random bits, and a checksum that detects typing errors."""
    chosen = "".join(secrets.choice(_ALPHABET) for _ in range(_RANDOM_CHARACTERS))
    body = f"{prefix}-{chosen}"
    return body + _checksum(body)


def has_valid_checksum(key: str) -> bool:
    """Return whether `key` ends with a valid checksum. Imported keys may have no checksum."""
    body, checksum = key[:-_CHECKSUM_CHARACTERS], key[-_CHECKSUM_CHARACTERS:]
    return secrets.compare_digest(_checksum(body).encode(), checksum.encode())


def is_well_formed(key: str) -> bool:
    """Return whether `key` has 16 to 200 visible ASCII characters."""
    return SHORTEST <= len(key) <= LONGEST and all("!" <= character <= "~" for character in key)


def is_sendable(key: str) -> bool:
    """Return whether a header can contain `key`.

    A header cannot contain control characters, or spaces at the ends of a value.
    """
    return key == key.strip() and key.isprintable()


def _checksum(body: str) -> str:
    value = zlib.crc32(body.encode())
    digits = []
    for _ in range(_CHECKSUM_CHARACTERS):
        value, digit = divmod(value, len(_ALPHABET))
        digits.append(_ALPHABET[digit])
    return "".join(digits)
