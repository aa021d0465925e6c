"""Makes entity tags of published documents, and finds the document for a rollback."""

from collections.abc import Sequence

from sluicegate.gateway.errors import NotFound, PreconditionFailed
from sluicegate.gateway.runtime.control_values import Published


def etag(published: Published) -> str:
    """Return the entity tag of a published document."""
    return f'"{published.generation}-{published.digest}"'


def check_match(if_match: str, active: Published | None) -> None:
    """Check that the header `If-Match` is empty or has the entity tag of the active document.

    Raises:
        PreconditionFailed: the header has another entity tag.
    """
    wanted = {tag.strip() for tag in if_match.split(",") if tag.strip()}
    if not wanted or (active is not None and wanted & {"*", etag(active)}):
        return
    current = "nothing" if active is None else f"`{etag(active)}`"
    raise PreconditionFailed(f"`If-Match` names another document, but {current} is active")


def rollback_target(
    history: Sequence[Published], active: Published | None, generation: int | None
) -> Published:
    """Return the document that a rollback publishes again.

    `history` is sorted, newest first. If `generation` is `None`, the result is the document that
    was published just before the first publication of the active document. Rollbacks do not count
    as publications.

    Raises:
        NotFound: there is no such document.
    """
    if generation is not None:
        found = [entry for entry in history if entry.generation == generation]
    else:
        origin = 0 if active is None else active.origin
        found = [entry for entry in history if entry.generation == entry.origin < origin]
    if not found:
        raise NotFound("the history has no such document; `GET /admin/config` lists the history")
    return found[0]
