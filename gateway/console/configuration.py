"""Shows, compares, checks and publishes configuration documents."""

import asyncio
from collections.abc import Sequence
from typing import cast

import msgspec
from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromQuery

from sluicegate.gateway.config.document import Document
from sluicegate.gateway.config.load import explain, load_sources
from sluicegate.gateway.config.sources import DocumentSource
from sluicegate.gateway.console.access import AnyRequest, Context
from sluicegate.gateway.console.document_diff import Difference, difference, normalised
from sluicegate.gateway.console.field_changes import FieldLines, described, lines_of
from sluicegate.gateway.console.form_fields import fields_of
from sluicegate.gateway.console.forms import Fields, number_of, one
from sluicegate.gateway.console.frame import Frame
from sluicegate.gateway.errors import (
    ConfigurationError,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
)
from sluicegate.gateway.operations.configuration import (
    Rollback,
    get_config,
    replace_config,
    roll_back_config,
)
from sluicegate.gateway.operations.generations import etag
from sluicegate.gateway.operations.publishing import CheckedDocument
from sluicegate.gateway.runtime.control import Control
from sluicegate.gateway.runtime.control_values import Published, Topic

_UPLOADED = "document.yaml"


class ActiveDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The active configuration document, and further data about it for the page."""

    published: Published
    tag: str
    text: str
    workers: dict[str, str]


class ConfigurationController(Controller):
    """Serves the page of the configuration and its forms."""

    path = "/configuration"
    include_in_schema = False

    @get("/", opt={"role": get_config.role})
    async def page(
        self, request: AnyRequest, frame: NamedDependency[Frame], control: NamedDependency[Control]
    ) -> Response[str]:
        """Return the page."""
        context = await _context(control)
        return frame.render(request, "configuration.html", context)

    @get("/difference", opt={"role": get_config.role})
    async def compare(
        self,
        request: AnyRequest,
        frame: NamedDependency[Frame],
        control: NamedDependency[Control],
        before: FromQuery[int],
        after: FromQuery[int],
    ) -> Response[str]:
        """Return the differences between two documents of the history."""
        history = await control.history()
        texts = [_sources_of(history, number) for number in (before, after)]
        fields, found = await asyncio.to_thread(_compare, *texts)
        title = f"Generation {before} to {after}"
        context = {"fields": fields, "found": found, "title": title, "guards": {}}
        return frame.render(request, "configuration/_difference.html", context)

    @post("/dry-run", status_code=200, opt={"role": replace_config.role})
    async def dry_run(
        self,
        request: AnyRequest,
        frame: NamedDependency[Frame],
        context: Context,
    ) -> Response[str]:
        """Return what publishing a document would change, or why it would be refused."""
        fields = await fields_of(request)
        text = _text(fields)
        try:
            answer = await replace_config(
                context, text.encode(), if_match=one(fields, "tag"), dry_run=True
            )
        except ConfigurationError as error:
            return frame.render(request, "configuration/_refused.html", {"reason": explain(error)})
        checked = cast("CheckedDocument", answer.result)  # of a dry run
        active = await context.control.active()
        former = active.sources if active is not None else ()
        wanted = (DocumentSource(name=_UPLOADED, text=text),)
        _, found = await asyncio.to_thread(_compare, former, wanted)
        title = "The document is valid. It would change"
        shown = {"fields": described(checked.difference), "found": found, "title": title}
        shown["guards"] = checked.guards
        return frame.render(request, "configuration/_difference.html", shown)

    @post("/publish", status_code=200, opt={"role": replace_config.role})
    async def publish(
        self,
        request: AnyRequest,
        frame: NamedDependency[Frame],
        context: Context,
    ) -> Response[str]:
        """Publish a document, unless another one was published since the page was loaded."""
        fields = await fields_of(request)
        tag = one(fields, "tag")
        if not tag and await context.control.active() is not None:
            raise PreconditionFailed("a document was published meanwhile: reload the page")
        try:
            answer = await replace_config(context, _text(fields).encode(), if_match=tag)
        except ConfigurationError as error:
            shown = await _context(context.control) | {"refused": explain(error)}
            shown |= {"draft": _text(fields)}
            return frame.render(request, "configuration/_state.html", shown)
        return await _state(request, frame, context.control, answer.result)

    @post("/rollback", status_code=200, opt={"role": roll_back_config.role})
    async def rollback(
        self,
        request: AnyRequest,
        frame: NamedDependency[Frame],
        context: Context,
    ) -> Response[str]:
        """Publish an earlier document again."""
        generation = number_of(one(await fields_of(request), "generation"), "generation")
        answer = await roll_back_config(context, Rollback(generation=generation))
        return await _state(request, frame, context.control, answer.result)


async def _state(
    request: AnyRequest, frame: Frame, control: Control, change: object
) -> Response[str]:
    """Return the part of the page that shows the active document after a change."""
    context = await _context(control) | {"change": change}
    return frame.render(request, "configuration/_state.html", context)


async def _context(control: Control) -> dict[str, object]:
    published = await control.active()
    active = None
    if published is not None:
        text = await asyncio.to_thread(_editable, published.sources)
        workers = await control.wait_for_workers(Topic.CONFIG, published.generation, within=0)
        active = ActiveDocument(
            published=published, tag=etag(published), text=text, workers=workers
        )
    return {
        "active": active,
        "history": await control.history(),
        "change": None,
        "refused": "",
        "draft": "",
    }


def _editable(sources: Sequence[DocumentSource]) -> str:
    """Return the text to edit. A single file stays as it is. Several files are merged."""
    return sources[0].text if len(sources) == 1 else normalised(sources)


def _compare(
    before: Sequence[DocumentSource], after: Sequence[DocumentSource]
) -> tuple[FieldLines, Difference]:
    """Return the fields and the lines in which two documents differ."""
    found = difference(normalised(before), normalised(after))
    try:
        fields = lines_of(*(load_sources(each) if each else Document() for each in (before, after)))
    except ConfigurationError:  # this version cannot read an old document
        fields = FieldLines(lines=[], omitted=0, notes=[])
    return fields, found


def _sources_of(history: Sequence[Published], number: int) -> Sequence[DocumentSource]:
    for entry in history:
        if entry.generation == number:
            return entry.sources
    raise NotFound(f"the history has no generation {number} any more: reload the page")


def _text(fields: Fields) -> str:
    # Browsers send line breaks as CRLF, but configuration documents have LF.
    text = "".join(fields.get("text", ())).replace("\r\n", "\n")
    if not text.strip():
        raise InvalidRequest("the document is empty: enter its text, or choose a file")
    return text
