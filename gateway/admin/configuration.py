"""Serves the operators' routes for the configuration document."""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

import msgspec
from litestar import Controller, Request, Response, get, post, put
from litestar.di import NamedDependency
from litestar.params import FromQuery, HeaderParameter

from gateway.api.openapi_parts import Content, Json, Operation
from gateway.config.document import Document
from gateway.config.load import load_sources
from gateway.config.sources import MAX_SOURCE_BYTES, DocumentSource
from gateway.errors import (
    ConfigurationError,
    Conflict,
    DependencyUnavailable,
    InvalidRequest,
    NotFound,
    PayloadTooLarge,
    PreconditionFailed,
)
from gateway.operations.generations import etag
from gateway.operations.operators import Operator, Role
from gateway.operations.publishing import CheckedDocument, PublishedChange, Publisher
from gateway.runtime.control import Control, Published, Topic
from gateway.settings import Settings

_ETAG: Json = {"description": "The `ETag` of the document to replace.", "example": "*"}
_BACKENDS = [{"id": "eu-1", "url": "http://10.0.0.7:8100"}]
_DOCUMENT = {
    "regions": [{"name": "eu", "pools": [{"backends": _BACKENDS}]}],
    "models": {"sentiment": {"cache_ttl": 3600.0}},
}
_YAML = """\
regions:
- name: eu
  pools:
  - backends:
    - {id: eu-1, url: "http://10.0.0.7:8100"}
models:
  sentiment: {cache_ttl: 3600}
"""
_operation = partial(Operation, tag="configuration")


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """An entry in the history of published configuration documents."""

    generation: int
    digest: str
    author: str
    reason: str
    time: float


class ActiveConfig(Generation, frozen=True, kw_only=True):
    """The active configuration document.

    `files` holds the text as it was published. `document` holds the parsed values, including
    defaults. `workers` shows which workers have applied the document.
    """

    files: tuple[DocumentSource, ...]
    document: Document
    workers: dict[str, str]
    history: list[Generation]


class Rollback(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Names the document to publish again."""

    generation: int | None = None
    """A generation in the history. The default is the document before the active one."""


def _change(kind: object) -> Mapping[int, tuple[Content, ...]]:
    return {
        200: (Content(type=kind, summary="Published, and every worker has applied it"),),
        202: (
            Content(
                type=PublishedChange, summary="Published, but not every worker has applied it yet"
            ),
        ),
    }


class ConfigController(Controller):
    """Shows and changes the active configuration document."""

    path = "/admin/config"

    @get(
        "/",
        opt={"role": Role.VIEWER},
        operation=_operation(
            id="get_config",
            summary="The active document and the history",
            errors=(NotFound, ConfigurationError, DependencyUnavailable),
            answers={200: (Content(type=ActiveConfig, summary="The active document"),)},
            headers=("ETag",),
        ),
    )
    async def show(
        self, control: NamedDependency[Control], settings: NamedDependency[Settings]
    ) -> Response[ActiveConfig]:
        """Return the active document and the history of published documents."""
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

    @put(
        "/",
        opt={"role": Role.OPERATOR},
        operation=_operation(
            id="replace_config",
            summary="Replace the whole document",
            errors=(
                *(PreconditionFailed, ConfigurationError),
                *(Conflict, DependencyUnavailable),
            ),
            body=(
                Content(type=Document, example=_DOCUMENT),
                Content(schema={"type": "string"}, media="application/yaml", example=_YAML),
            ),
            answers=_change(PublishedChange | CheckedDocument),
            headers=("ETag",),
            about={
                "if-match": _ETAG,
                "dry_run": {
                    "description": "Check the document and list its changes, but do not publish it."
                },
            },
        ),
    )
    async def replace(
        self,
        request: Request[Any, Any, Any],
        publisher: NamedDependency[Publisher],
        operator: NamedDependency[Operator],
        if_match: Annotated[str, HeaderParameter(name="if-match")] = "",
        dry_run: FromQuery[bool] = False,  # noqa: FBT002 - a query parameter
    ) -> Response[PublishedChange | CheckedDocument]:
        """Replace the whole document by the YAML or JSON in the request's body."""
        text, may_price = await _text(request), operator.may(Role.BILLING)
        if dry_run:
            return Response(await publisher.check(text, if_match=if_match, may_price=may_price))
        return _answer(
            await publisher.put(text, if_match=if_match, author=operator.name, may_price=may_price)
        )

    @post(
        "/reload",
        opt={"role": Role.OPERATOR, "without_certificate": Role.ADMIN},
        operation=_operation(
            id="reload_config",
            summary="Publish the configuration folder",
            errors=(ConfigurationError, Conflict, DependencyUnavailable),
            answers=_change(PublishedChange),
            headers=("ETag",),
        ),
    )
    async def reload(
        self, publisher: NamedDependency[Publisher], operator: NamedDependency[Operator]
    ) -> Response[PublishedChange | CheckedDocument]:
        """Publish the configuration folder.

        The status is 200 if every worker has applied it, and 202 if some have not yet.
        """
        return _answer(
            await publisher.reload(author=operator.name, may_price=operator.may(Role.BILLING))
        )

    @post(
        "/rollback",
        opt={"role": Role.OPERATOR},
        operation=_operation(
            id="roll_back_config",
            summary="Publish an earlier document again",
            errors=(NotFound, ConfigurationError, Conflict, DependencyUnavailable),
            body=(Content(type=Rollback, example={"generation": 1}),),
            is_body_required=False,
            answers=_change(PublishedChange),
            headers=("ETag",),
        ),
    )
    async def rollback(
        self,
        request: Request[Any, Any, Any],
        publisher: NamedDependency[Publisher],
        operator: NamedDependency[Operator],
    ) -> Response[PublishedChange | CheckedDocument]:
        """Publish an earlier document again."""
        body = await request.body() or b"{}"
        try:
            wanted = msgspec.json.decode(body, type=Rollback)
        except msgspec.DecodeError as error:
            raise InvalidRequest(f"the body is invalid: {error}") from error
        return _answer(
            await publisher.rollback(
                wanted.generation, author=operator.name, may_price=operator.may(Role.BILLING)
            )
        )


def _answer(change: PublishedChange) -> Response[PublishedChange | CheckedDocument]:
    tag = f'"{change.generation}-{change.digest}"'
    return Response(change, status_code=200 if change.live else 202, headers={"etag": tag})


def _line(published: Published) -> dict[str, Any]:  # Any: the fields have several types
    return {name: getattr(published, name) for name in Generation.__struct_fields__}


async def _text(request: Request[Any, Any, Any]) -> str:
    body = await request.body()
    if len(body) > MAX_SOURCE_BYTES:
        raise PayloadTooLarge(f"the document is larger than {MAX_SOURCE_BYTES} bytes")
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest("the document is not encoded in UTF-8") from error
