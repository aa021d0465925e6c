"""Finds who calls: the principals of all keys, in memory, under the hashes of the keys."""

from collections.abc import Mapping

from gateway.auth.keys import LONGEST, SHORTEST, digest_of_key
from gateway.errors import AuthenticationFailed, DependencyUnavailable, GatewayError
from gateway.types import Principal


class KeyRing:
    """Every known key's principal.

    A look-up hashes what was sent (0.4 µs) and asks a dictionary for the digest, so that its time
    says nothing about a stored key, and no key is held in memory. An unknown key is refused; when
    the store of keys is down, what was put here last stays. `generation` is another whenever what
    is known may be.
    """

    def __init__(self, principals: Mapping[str, Principal] | None = None) -> None:
        self._principals: dict[bytes, Principal] = {}
        self.generation = 0
        self._loaded = False
        if principals is not None:
            self.replace(principals)

    def __len__(self) -> int:
        return len(self._principals)

    def find(self, key: bytes) -> Principal | None:
        """Return whose key `key` is, or `None` when nobody's."""
        if not SHORTEST <= len(key) <= LONGEST:
            return None
        return self._principals.get(digest_of_key(key))

    def refusal(self, key: bytes) -> GatewayError:
        """Return why `key`, which was not found, is refused.

        Until keys were read for the first time, nobody can tell whether it is one.
        """
        if self._loaded or not SHORTEST <= len(key) <= LONGEST:
            return AuthenticationFailed(
                "Send a valid API key as `Authorization: Bearer <key>`; this one is missing,"
                " unknown or revoked."
            )
        return DependencyUnavailable(
            "accounts unavailable: the keys could not be read yet; try again", retry_after=1.0
        )

    def replace(self, principals: Mapping[str, Principal]) -> None:
        """Know exactly `principals`, by `hash_key`, from the next look-up on.

        Raises:
            ValueError: a hash is not hexadecimal; what was known stays.
        """
        self._principals = {bytes.fromhex(hash_): one for hash_, one in principals.items()}
        self.generation += 1
        self._loaded = True

    def drop_expired(self, now: int) -> None:
        """Forget the keys that expired by `now` (nanoseconds since the epoch)."""
        left = {
            digest: one
            for digest, one in self._principals.items()
            if one.expires is None or one.expires > now
        }
        if len(left) < len(self._principals):
            self._principals = left
            self.generation += 1
