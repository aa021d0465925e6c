"""Shows and changes the active configuration document."""

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from sluicegate.gateway.api.openapi_parts import Content
from sluicegate.gateway.config.document import Document
from sluicegate.gateway.config.load import load_sources
from sluicegate.gateway.config.sources import MAX_SOURCE_BYTES, DocumentSource
from sluicegate.gateway.errors import (
    ConfigurationError,
    Conflict,
    InvalidRequest,
    NotFound,
    PayloadTooLarge,
    PreconditionFailed,
)
from sluicegate.gateway.operations.context import OperationContext
from sluicegate.gateway.operations.declaration import Answer, Family, Place, Sent
from sluicegate.gateway.operations.generations import etag
from sluicegate.gateway.operations.operators import Role
from sluicegate.gateway.operations.publishing import CheckedDocument, PublishedChange
from sluicegate.gateway.runtime.control_values import Published, Topic

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
IfMatch = Annotated[str, Sent(name="if-match", place=Place.HEADER)]
FAMILY = Family(
    "configuration",
    about={
        "if-match": {"description": "The `ETag` of the document to replace.", "example": "*"},
        "dry_run": {
            "description": "Check the document, list its changes, and count what changed guards"
            " would have decided about sampled texts, but do not publish it."
        },
    },
)


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


_LATEST = Rollback()


def _change(kind: object) -> Mapping[int, tuple[Content, ...]]:
    return {
        200: (Content(type=kind, summary="Published, and every worker has applied it"),),
        202: (
            Content(
                type=PublishedChange, summary="Published, but not every worker has applied it yet"
            ),
        ),
    }


@FAMILY.operation(
    "GET /admin/config",
    "The active document and the history",
    role=Role.VIEWER,
    errors=(NotFound, ConfigurationError),
    answers={200: (Content(type=ActiveConfig, summary="The active document"),)},
    headers=("ETag",),
)
async def get_config(context: OperationContext) -> Answer[ActiveConfig]:
    """Return the active document and the history of published documents."""
    control = context.control
    published = await control.active()
    if published is None:
        raise NotFound("nothing is published yet; workers serve the configuration folder")
    history = await control.history()
    shown = ActiveConfig(
        **_line(published),
        files=published.sources,
        document=await asyncio.to_thread(
            load_sources, published.sources, placement=context.settings.placement
        ),
        workers=await control.wait_for_workers(Topic.CONFIG, published.generation, within=0),
        history=[Generation(**_line(entry)) for entry in history],
    )
    return Answer(result=shown, headers={"etag": etag(published)})


@FAMILY.operation(
    "PUT /admin/config",
    "Replace the whole document",
    role=Role.OPERATOR,
    errors=(PreconditionFailed, ConfigurationError, Conflict),
    body=(
        Content(type=Document, example=_DOCUMENT),
        Content(schema={"type": "string"}, media="application/yaml", example=_YAML),
    ),
    answers=_change(PublishedChange | CheckedDocument),
    headers=("ETag",),
)
async def replace_config(
    context: OperationContext, document: bytes, *, if_match: IfMatch = "", dry_run: bool = False
) -> Answer[PublishedChange | CheckedDocument]:
    """Replace the whole document by the YAML or JSON in the request's body."""
    text, may_price = _text(document), context.operator.may(Role.BILLING)
    publisher = context.publisher
    if dry_run:
        checked = await publisher.check(
            text, if_match=if_match, cache_redis=context.cache_redis, may_price=may_price
        )
        return Answer(result=checked)
    return _answer(
        await publisher.put(
            text, if_match=if_match, author=context.operator.name, may_price=may_price
        )
    )


@FAMILY.operation(
    "POST /admin/config/reload",
    "Publish the configuration folder",
    role=Role.OPERATOR,
    errors=(ConfigurationError, Conflict),
    answers=_change(PublishedChange),
    headers=("ETag",),
    without_certificate=Role.ADMIN,
)
async def reload_config(context: OperationContext) -> Answer[PublishedChange | CheckedDocument]:
    """Publish the configuration folder.

    The status is 200 if every worker has applied it, and 202 if some have not yet.
    """
    operator = context.operator
    return _answer(
        await context.publisher.reload(author=operator.name, may_price=operator.may(Role.BILLING))
    )


@FAMILY.operation(
    "POST /admin/config/rollback",
    "Publish an earlier document again",
    role=Role.OPERATOR,
    errors=(NotFound, ConfigurationError, Conflict),
    body=(Content(type=Rollback, example={"generation": 1}),),
    answers=_change(PublishedChange),
    headers=("ETag",),
)
async def roll_back_config(
    context: OperationContext, wanted: Rollback = _LATEST
) -> Answer[PublishedChange | CheckedDocument]:
    """Publish an earlier document again."""
    operator = context.operator
    return _answer(
        await context.publisher.rollback(
            wanted.generation, author=operator.name, may_price=operator.may(Role.BILLING)
        )
    )


def _answer(change: PublishedChange) -> Answer[PublishedChange | CheckedDocument]:
    return Answer(result=change, headers={"etag": f'"{change.generation}-{change.digest}"'})


def _line(published: Published) -> dict[str, Any]:  # Any: the fields have several types
    return {name: getattr(published, name) for name in Generation.__struct_fields__}


def _text(document: bytes) -> str:
    if len(document) > MAX_SOURCE_BYTES:
        raise PayloadTooLarge(f"the document is larger than {MAX_SOURCE_BYTES} bytes")
    try:
        return document.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest("the document is not encoded in UTF-8") from error
