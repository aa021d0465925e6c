"""Makes the operators' listener reload the configuration folder when the supervisor gets SIGHUP."""

from collections.abc import Callable

import msgspec

from sluicegate.gateway.settings import Settings
from sluicegate.gateway.supervisor.local_http import ask
from sluicegate.gateway.supervisor.topology import preface_of_admin, reachable

RELOAD_PATH = "/admin/config/reload"


class ReloadAnswer(msgspec.Struct, frozen=True):
    """Holds the fields of the response that the operator is shown.

    Some of these fields are in error responses only, which are problem documents (RFC 9457).
    """

    generation: int | None = None
    notice: str = ""
    detail: str = ""
    file: str | None = None
    line: int | None = None
    field: str = ""


async def reload_configuration(
    settings: Settings, admin_key: str, tell: Callable[[str], None]
) -> None:
    """Reload the configuration, and report the outcome with `tell`. Raises no errors."""
    try:
        status, body = await ask(
            reachable(settings.admin_host),
            settings.admin_port,
            RELOAD_PATH,
            method="POST",
            headers={"authorization": f"Bearer {admin_key}"},
            preface=preface_of_admin(settings),
            timeout=10.0,
        )
        answer = msgspec.json.decode(body, type=ReloadAnswer)
    except (OSError, msgspec.DecodeError) as error:
        tell(f"the configuration was not reloaded: {error}")
        return
    tell(describe(status, answer))


async def refuse_reload(tell: Callable[[str], None]) -> None:
    """Report that nothing is reloaded, because this supervisor runs no operators' listener.

    No request is sent to the listener's port. Another program may use this port, and must not get
    the admin key.
    """
    tell(
        "the configuration was not reloaded: this supervisor runs no operators' listener; use"
        " `POST /admin/config/reload`"
    )


def describe(status: int, answer: ReloadAnswer) -> str:
    """Return a line that describes the response to the request for the reload."""
    if answer.generation is not None:
        waiting = "" if status == 200 else ", which not every worker uses yet"  # noqa: PLR2004 - OK
        notice = f"; {answer.notice}" if answer.notice else ""
        return f"the configuration is at generation {answer.generation}{waiting}{notice}"
    place = f"{answer.file}:{answer.line}: " if answer.file else ""
    field = f"{answer.field}: " if answer.field else ""
    return f"the configuration was not reloaded: {place}{field}{answer.detail}"
