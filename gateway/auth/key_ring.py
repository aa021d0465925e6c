"""Authenticates callers: finds the principal of a key in memory, by the key's hash."""

from collections.abc import Mapping

from gateway.auth.keys import LONGEST, SHORTEST, digest_of_key
from gateway.errors import AuthenticationFailed, DependencyUnavailable, GatewayError
from gateway.types import Principal


class KeyRing:
    """Maps every valid key to its principal.

    A lookup hashes the key that was sent (0.4 µs) and looks up the digest, so that its time reveals
    nothing about stored keys, and no key is held in memory. An unknown key is refused. While the
    store of keys is down, the last principals stay. `generation` changes whenever they may have.
    Principals carry the rules of their limits; `PrincipalsFollower` replaces them.
    """

    def __init__(self, principals: Mapping[str, Principal] | None = None) -> None:
        self._principals: dict[bytes, Principal] = {}
        self.generation = 0
        self.origins: frozenset[str] = frozenset()
        """The origins that keys are limited to, of all keys together."""
        self.has_bounds = False
        """Whether some key is limited to origins or routes."""
        self._loaded = False
        if principals is not None:
            self.replace(principals)

    def __len__(self) -> int:
        return len(self._principals)

    def find(self, key: bytes) -> Principal | None:
        """Return the principal of `key`, or `None` if it is unknown."""
        if not SHORTEST <= len(key) <= LONGEST:
            return None
        return self._principals.get(digest_of_key(key))

    def refusal(self, key: bytes) -> GatewayError:
        """Return the error for `key`, which was not found.

        Until keys were read for the first time, it is `DependencyUnavailable`.
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
        """Replace all principals, which are given by `hash_key`, from the next lookup on.

        Raises:
            ValueError: a hash is not hexadecimal; nothing has changed.
        """
        self._principals = {bytes.fromhex(hash_): one for hash_, one in principals.items()}
        bounded = [
            one for one in principals.values() if one.origins is not None or one.routes is not None
        ]
        self.has_bounds = bool(bounded)
        self.origins = frozenset(origin for one in bounded for origin in one.origins or ())
        self.generation += 1
        self._loaded = True

    def drop_expired(self, now: int) -> None:
        """Remove the keys that expired by `now` (nanoseconds since the epoch)."""
        valid = {
            digest: one
            for digest, one in self._principals.items()
            if one.expires is None or one.expires > now
        }
        if len(valid) < len(self._principals):
            self._principals = valid
            self.generation += 1
