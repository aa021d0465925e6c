"""Authenticates callers by the hashes of their secrets. All valid API keys are held in memory."""

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence

from sluicegate.gateway.auth.keys import LONGEST, SHORTEST, digest_of_key
from sluicegate.gateway.errors import AuthenticationFailed, DependencyUnavailable, GatewayError
from sluicegate.gateway.types import KeyId, Principal

_FEW = 1000


class PrincipalTable:
    """Finds principals (identities of callers) by the digest of a secret, or by the id of a key."""

    def __init__(self, principals: Iterable[tuple[bytes, Principal]] = ()) -> None:
        self.by_digest: dict[bytes, Principal] = {}
        self._digests: dict[KeyId, bytes] = {}
        self._others: dict[KeyId, list[bytes]] = {}  # the digests of a key's former secret
        self._expiring: list[tuple[int, bytes]] = []  # a heap; it may contain removed digests
        self._bounded = 0
        self._origins: dict[str, int] = {}  # how many secrets are limited to each origin
        for digest, principal in principals:
            self._add(digest, principal)

    @property
    def has_bounds(self) -> bool:
        """Whether any key is limited to certain web origins or API routes."""
        return self._bounded > 0

    @property
    def origins(self) -> Collection[str]:
        """A live view of all web origins to which keys are limited."""
        return self._origins.keys()

    def of_key(self, key: KeyId) -> Principal | None:
        """Return the principal of the key with this id, or `None` if the key is not valid."""
        digest = self._digests.get(key)
        return None if digest is None else self.by_digest.get(digest)

    def replace_keys(self, keys: Mapping[KeyId, Sequence[tuple[bytes, Principal]]]) -> bool:
        """Replace the principals of each key in `keys`; return whether any key was known before."""
        had_others = False
        for key, principals in keys.items():
            had_others |= self._remove(key)
            for digest, principal in principals:
                self._add(digest, principal)
        if len(self._expiring) > 2 * len(self.by_digest) + _FEW:
            # Most entries belong to removed digests, so the heap is built anew.
            self._expiring = [
                (one.expires, digest)
                for digest, one in self.by_digest.items()
                if one.expires is not None
            ]
            heapq.heapify(self._expiring)
        return had_others

    def remove_expired(self, now: int) -> bool:
        """Remove the secrets that have expired at `now`; return whether there were any."""
        count = len(self.by_digest)
        while self._expiring and self._expiring[0][0] <= now:
            expires, digest = heapq.heappop(self._expiring)
            principal = self.by_digest.get(digest)
            if principal is not None and principal.expires == expires:
                self._drop(digest)
        return len(self.by_digest) < count

    def _add(self, digest: bytes, principal: Principal) -> None:
        other = self.by_digest.get(digest)
        if other is not None and other.key != principal.key and other.expires is None:
            return  # the former secret of this key is now the present secret of another key
        if other is not None:
            self._drop(digest)
        self.by_digest[digest] = principal
        if self._digests.setdefault(principal.key, digest) != digest:
            self._others.setdefault(principal.key, []).append(digest)
        if principal.expires is not None:
            heapq.heappush(self._expiring, (principal.expires, digest))
        if principal.origins is not None or principal.routes is not None:
            self._bounded += 1
            for origin in principal.origins or ():
                self._origins[origin] = self._origins.get(origin, 0) + 1

    def _remove(self, key: KeyId) -> bool:
        first = self._digests.pop(key, None)
        if first is None:
            return False
        for digest in (first, *self._others.pop(key, ())):
            if digest in self.by_digest and self.by_digest[digest].key == key:
                self._drop(digest)
        return True

    def _drop(self, digest: bytes) -> None:
        principal = self.by_digest.pop(digest)
        if principal.origins is not None or principal.routes is not None:
            self._bounded -= 1
            for origin in principal.origins or ():
                self._origins[origin] -= 1
                if not self._origins[origin]:
                    del self._origins[origin]


class KeyRing:
    """Maps the secret of every valid API key to its principal, the identity of the caller.

    A lookup hashes the sent secret, which takes 0.4 µs, and looks up the digest. Only digests are
    stored and compared. Therefore, the duration of a lookup reveals nothing about stored secrets.

    `PrincipalsFollower` updates the principals, which contain the limits of the tenant and the key.
    While the ledger is down, the present principals stay in use. `generation` changes whenever a
    principal is replaced or removed. Callers compare it to find out whether a principal that they
    hold is still current.
    """

    def __init__(self, principals: Mapping[str, Principal] | None = None) -> None:
        self._table = PrincipalTable()
        self._by_digest = self._table.by_digest
        self.generation = 0
        self._loaded = False
        if principals is not None:
            self.replace(principals)

    def __len__(self) -> int:
        return len(self._by_digest)

    @property
    def origins(self) -> Collection[str]:
        """A live view of all web origins to which keys are limited."""
        return self._table.origins

    @property
    def has_bounds(self) -> bool:
        """Whether any key is limited to certain web origins or API routes."""
        return self._table.has_bounds

    def find(self, key: bytes) -> Principal | None:
        """Return the principal of the secret `key`, or `None` if the secret is unknown."""
        if not SHORTEST <= len(key) <= LONGEST:
            return None
        return self._by_digest.get(digest_of_key(key))

    def find_by_id(self, key: KeyId) -> Principal | None:
        """Return the principal of the key with this id, or `None` if the key is not valid."""
        return self._table.of_key(key)

    def refusal(self, key: bytes) -> GatewayError:
        """Return the error for a secret `key` that `find` has not found.

        The error is `DependencyUnavailable` until keys have been read for the first time.
        """
        if self._loaded or not SHORTEST <= len(key) <= LONGEST:
            return AuthenticationFailed(
                "The API key is missing, unknown or revoked. Send a valid key as"
                " `Authorization: Bearer <key>`."
            )
        return DependencyUnavailable(
            "The gateway could not read the API keys yet. Try again.", retry_after=1.0
        )

    def replace(self, principals: Mapping[str, Principal]) -> None:
        """Replace all principals. `principals` maps each secret's hash to a principal.

        The hashes are results of `hash_key`.

        Raises:
            ValueError: a hash is not hexadecimal. Nothing has changed.
        """
        pairs = ((bytes.fromhex(hash_), one) for hash_, one in principals.items())
        self.replace_table(PrincipalTable(pairs))

    def replace_table(self, table: PrincipalTable) -> None:
        """Replace all principals by those in `table`.

        The caller must not change `table` afterwards.
        """
        self._table, self._by_digest = table, table.by_digest
        self.generation += 1
        self._loaded = True

    def replace_keys(self, keys: Mapping[KeyId, Sequence[tuple[bytes, Principal]]]) -> None:
        """Replace the digests and principals of each key in `keys`. An empty list removes a key."""
        if self._table.replace_keys(keys):
            self.generation += 1

    def drop_expired(self, now: int) -> None:
        """Remove the secrets that have expired at `now`, a Unix time in nanoseconds."""
        if self._table.remove_expired(now):
            self.generation += 1
