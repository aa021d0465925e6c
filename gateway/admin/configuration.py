"""Serves the operators' routes of the configuration document."""

import asyncio
from typing import Annotated, Any

import msgspec
from litestar import Controller, Request, Response, get, post, put
from litestar.di import NamedDependency
from litestar.params import FromQuery, HeaderParameter

from gateway.admin.publishing import CheckedDocument, PublishedChange, Publisher, etag
from gateway.config.document import Document
from gateway.config.load import load_sources
from gateway.config.sources import MAX_SOURCE_BYTES, DocumentSource
from gateway.errors import InvalidRequest, NotFound, PayloadTooLarge
from gateway.runtime.control import Control, Published, Topic
from gateway.settings import Settings

_AUTHOR = "admin"


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the history."""

    generation: int
    digest: str
    author: str
    reason: str
    time: float


class ActiveConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The active configuration: as published (`files`), as used (`document`), by which workers."""

    generation: int
    digest: str
    author: str
    reason: str
    time: float
    files: tuple[DocumentSource, ...]
    document: Document
    workers: dict[str, str]
    history: list[Generation]


class Rollback(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rollback to a generation; by default to the one before the active."""

    generation: int | None = None
    """The number of a document in the history."""


class ConfigController(Controller):
    """Shows and changes the document."""

    path = "/admin/config"

    @get("/")
    async def show(
        self, control: NamedDependency[Control], settings: NamedDependency[Settings]
    ) -> Response[ActiveConfig]:
        """Return what is active."""
        published = await control.active()
        if published is None:
            raise NotFound("nothing is published yet; workers serve the configuration folder")
        history = await control.history()
        shown = ActiveConfig(
            **_line(published),
            files=published.sources,
            document=await asyncio.to_thread(
                load_sources, published.sources, placement=settings.placement
            ),
            workers=await control.wait_for_workers(Topic.CONFIG, published.generation, within=0),
            history=[Generation(**_line(entry)) for entry in history],
        )
        return Response(shown, headers={"etag": etag(published)})

    @put("/")
    async def replace(
        self,
        request: Request[Any, Any, Any],
        publisher: NamedDependency[Publisher],
        if_match: Annotated[str, HeaderParameter(name="if-match")] = "",
        dry_run: FromQuery[bool] = False,  # noqa: FBT002 - a query parameter
    ) -> Response[PublishedChange | CheckedDocument]:
        """Publish the posted YAML (or JSON) document in place of everything."""
        text = await _text(request)
        if dry_run:
            return Response(await publisher.check(text, if_match=if_match))
        return _answer(await publisher.put(text, if_match=if_match, author=_AUTHOR))

    @post("/reload")
    async def reload(
        self, publisher: NamedDependency[Publisher]
    ) -> Response[PublishedChange | CheckedDocument]:
        """Publish the configuration folder; 200 when live everywhere, 202 when not yet."""
        return _answer(await publisher.reload(author=_AUTHOR))

    @post("/rollback")
    async def rollback(
        self, request: Request[Any, Any, Any], publisher: NamedDependency[Publisher]
    ) -> Response[PublishedChange | CheckedDocument]:
        """Publish an earlier document again."""
        body = await request.body() or b"{}"
        try:
            wanted = msgspec.json.decode(body, type=Rollback)
        except msgspec.DecodeError as error:
            raise InvalidRequest(f"the body does not fit: {error}") from error
        return _answer(await publisher.rollback(wanted.generation, author=_AUTHOR))


def _answer(change: PublishedChange) -> Response[PublishedChange | CheckedDocument]:
    tag = f'"{change.generation}-{change.digest}"'
    return Response(change, status_code=200 if change.live else 202, headers={"etag": tag})


def _line(published: Published) -> dict[str, Any]:  # Any: fields of several types, for a struct
    return {name: getattr(published, name) for name in Generation.__struct_fields__}


async def _text(request: Request[Any, Any, Any]) -> str:
    body = await request.body()
    if len(body) > MAX_SOURCE_BYTES:
        raise PayloadTooLarge(f"a document has at most {MAX_SOURCE_BYTES} bytes")
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest("the document is not UTF-8") from error
