"""Keeps operators' sessions in the memory of the process.

A session holds the operator's key. The key is checked again at every request, so a session ends
when the key is revoked. A restart of the process ends all sessions.
"""

import secrets
from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha256

import msgspec

from sluicegate.gateway.admin.operator_directory import OperatorDirectory
from sluicegate.gateway.errors import AuthenticationFailed, PermissionDenied
from sluicegate.gateway.operations.operators import Operator, Role

LIFETIME = 12 * 3600
"""Seconds after which an operator must log in again."""
_MOST_SESSIONS = 1000
_MOST_OF_ONE = 20
"""The most sessions of one operator. Without this limit, the new sessions of one operator could end
the sessions of other operators."""


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """The session of one browser. Each form on the session's pages contains `csrf_token`."""

    operator: str
    credential: str
    csrf_token: str
    expires: float


class Sessions:
    """Opens, finds and closes sessions. If an operator has too many sessions, closes the oldest.

    `clock` returns monotonic seconds.
    """

    def __init__(
        self,
        *,
        operators: OperatorDirectory,
        clock: Callable[[], float],
        most: int = _MOST_SESSIONS,
        most_of_one: int = _MOST_OF_ONE,
    ) -> None:
        self._operators = operators
        self._clock = clock
        self._most = most
        self._most_of_one = most_of_one
        # The dictionary's keys are digests of cookies, so that nobody who has a copy of the memory
        # can use a session.
        self._open: OrderedDict[bytes, Session] = OrderedDict()

    async def open(self, credential: str) -> str | None:
        """Open a session and return its cookie, or `None` if no operator has this key.

        Raises:
            DependencyUnavailable: the key cannot be checked now.
            PermissionDenied: the operator does not have the role `viewer`.
        """
        operator = await self._operator(credential)
        if operator is None:
            return None
        if not operator.may(Role.VIEWER):
            raise PermissionDenied(
                f"`{operator.name}` may only read metrics. Log in as an operator with another role,"
                f" such as `{Role.VIEWER}`."
            )
        own = [digest for digest, one in self._open.items() if one.operator == operator.name]
        for digest in own[: max(0, len(own) + 1 - self._most_of_one)]:
            del self._open[digest]
        while len(self._open) >= self._most:
            self._open.popitem(last=False)
        cookie = secrets.token_urlsafe(32)
        self._open[_digest(cookie)] = Session(
            operator=operator.name,
            credential=credential,
            csrf_token=secrets.token_urlsafe(32),
            expires=self._clock() + LIFETIME,
        )
        return cookie

    async def find(self, cookie: str) -> tuple[Session, Operator] | None:
        """Return a cookie's session and its operator, or `None` if the session has ended.

        Raises:
            DependencyUnavailable: the session's key cannot be checked now.
        """
        session = self._open.get(_digest(cookie))
        if session is None:
            return None
        if self._clock() < session.expires:
            operator = await self._operator(session.credential)
            if operator is not None:
                return session, operator
        self.close(cookie)
        return None

    def close(self, cookie: str) -> None:
        """End the session of a cookie, if there is one."""
        self._open.pop(_digest(cookie), None)

    async def _operator(self, credential: str) -> Operator | None:
        try:
            return await self._operators.authenticate(credential)
        except AuthenticationFailed:  # the token has expired
            return None


def _digest(cookie: str) -> bytes:
    return sha256(cookie.encode()).digest()
