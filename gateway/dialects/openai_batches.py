"""Serves customers' routes for files and batches, in the format of OpenAI's API."""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

from litestar import Controller, Request, delete, get, post
from litestar.datastructures import ResponseHeader
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, QueryParameter, SkipValidation
from litestar.response import Stream

from sluicegate.gateway.api.admission import PRINCIPAL
from sluicegate.gateway.api.dialect import Dialect
from sluicegate.gateway.api.inference_route import InferenceRoutes
from sluicegate.gateway.api.json_body import read_json
from sluicegate.gateway.api.key_rights import check_budget
from sluicegate.gateway.api.openapi_parts import Content, Kind, Operation
from sluicegate.gateway.batches.batch_access import BatchAccess
from sluicegate.gateway.batches.tenant_files import TenantFiles
from sluicegate.gateway.dialects.batch_schemas import (
    BatchList,
    BatchView,
    DeletedFile,
    FileList,
    FileView,
    NewBatch,
    batch_view,
    file_view,
)
from sluicegate.gateway.dialects.openai import OPENAI
from sluicegate.gateway.dialects.openai_errors import OPENAI_ERRORS
from sluicegate.gateway.dialects.uploads import MultipartReader
from sluicegate.gateway.errors import (
    BudgetExhausted,
    Conflict,
    DependencyUnavailable,
    InvalidRequest,
    NotFound,
    PayloadTooLarge,
    RateLimited,
    RequestTimeout,
)
from sluicegate.gateway.types import Principal

AnyRequest = Request[Any, Any, Any]
Files = NamedDependency[SkipValidation[TenantFiles]]
Batches = NamedDependency[SkipValidation[BatchAccess]]
Endpoints = NamedDependency[SkipValidation[InferenceRoutes]]
_MAX_FILES = 10_000
_MAX_BATCHES = 100
_NAME = "openai-batches"
_operation = partial(Operation, tag=_NAME, kind=Kind.LIMITED, error_format=OPENAI_ERRORS)
_ERRORS = (RateLimited, DependencyUnavailable)
_AFTER = {"description": "The last id of the previous page.", "example": "file-5f2c"}
_FILE = {"file_id": {"description": "The id of a file.", "example": "file-5f2c"}}
_BATCH = {"batch_id": {"description": "The id of a batch.", "example": "batch_5f2c"}}
_LINES = (
    '{"custom_id": "1", "method": "POST", "url": "/v1/classify",'
    ' "body": {"model": "sentiment", "input": "a gorgeous, witty movie"}}'
)
_FORM: dict[str, Any] = {
    "type": "object",
    "required": ["purpose", "file"],
    "properties": {
        "purpose": {"type": "string", "enum": ["batch"]},
        "file": {"type": "string", "format": "binary", "description": "JSON Lines."},
        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
        "expires_after[seconds]": {"type": "integer", "minimum": 3600},
    },
}
_PRIVATE = (ResponseHeader(name="cache-control", value="private, no-store"),)
_NEW_BATCH = {
    "input_file_id": "file-5f2c",
    "endpoint": "/v1/classify",
    "completion_window": "24h",
}


class FilesController(Controller):
    """Stores, returns and deletes tenants' files."""

    path = "/v1/files"
    response_headers = _PRIVATE

    @post(
        "/",
        status_code=200,
        request_max_body_size=None,
        opt={
            "operation": _operation(
                id="create_file",
                summary="Upload a file",
                errors=(*_ERRORS, PayloadTooLarge),
                body=(
                    Content(
                        media="multipart/form-data",
                        schema=_FORM,
                        summary="A file with a line for each request",
                        example={"purpose": "batch", "file": _LINES},
                    ),
                ),
            )
        },
    )
    async def create_file(self, request: AnyRequest, files: Files) -> FileView:
        """Store a file of JSON Lines. Each line is a request of a batch."""
        form = MultipartReader(
            partial(files.uploading, _principal(request)), check=partial(expiry_of, files)
        )
        try:
            async with asyncio.timeout(files.bounds.upload_timeout):
                upload = await form.receive(
                    request.headers.get("content-type", ""), request.stream()
                )
        except TimeoutError as error:
            raise RequestTimeout("The file did not arrive in time; send it faster.") from error
        return file_view(await files.finish(upload, expires_after=expiry_of(files, form.fields)))

    @get(
        "/",
        opt={
            "operation": _operation(
                id="list_files",
                summary="Your files",
                errors=(*_ERRORS, NotFound),
                about={
                    "after": _AFTER,
                    "limit": {"description": "The number of files on a page.", "example": 20},
                    "order": {"description": "The order by creation time.", "example": "desc"},
                    "purpose": {
                        "description": "Returns only files with this purpose.",
                        "example": "batch",
                    },
                },
            )
        },
    )
    async def list_files(
        self,
        request: AnyRequest,
        files: Files,
        after: FromQuery[str | None] = None,
        limit: Annotated[int, QueryParameter(ge=1, le=_MAX_FILES)] = _MAX_FILES,
        order: FromQuery[Literal["asc", "desc"]] = "desc",
        purpose: FromQuery[str | None] = None,
    ) -> FileList:
        """Return a page of the tenant's files."""
        found = await files.page(
            _principal(request),
            limit=limit + 1,
            after=after,
            purpose=purpose,
            is_ascending=order == "asc",
        )
        data = [file_view(file) for file in found[:limit]]
        return FileList(
            data=data,
            first_id=data[0].id if data else None,
            last_id=data[-1].id if data else None,
            has_more=len(found) > limit,
        )

    @get(
        "/{file_id:str}",
        opt={
            "operation": _operation(
                id="get_file", summary="One file", errors=(*_ERRORS, NotFound), about=_FILE
            )
        },
    )
    async def get_file(self, file_id: FromPath[str], request: AnyRequest, files: Files) -> FileView:
        """Return a file's metadata."""
        return file_view(await files.get(_principal(request), file_id))

    @delete(
        "/{file_id:str}",
        status_code=200,
        opt={
            "operation": _operation(
                id="delete_file",
                summary="Delete a file",
                errors=(*_ERRORS, NotFound, Conflict),
                about=_FILE,
            )
        },
    )
    async def delete_file(
        self, file_id: FromPath[str], request: AnyRequest, files: Files
    ) -> DeletedFile:
        """Delete a file that no batch reads."""
        await files.delete(_principal(request), file_id)
        return DeletedFile(id=file_id)

    @get(
        "/{file_id:str}/content",
        opt={
            "operation": _operation(
                id="get_file_content",
                summary="The content of a file",
                errors=(*_ERRORS, NotFound),
                answers={
                    200: (
                        Content(
                            media="application/octet-stream",
                            schema={"type": "string", "format": "binary"},
                        ),
                    )
                },
                about=_FILE,
            )
        },
    )
    async def get_file_content(
        self, file_id: FromPath[str], request: AnyRequest, files: Files
    ) -> Stream:
        """Return the content of a file that was uploaded or that a batch has written."""
        content = await files.content(_principal(request), file_id)
        return Stream(content, media_type="application/octet-stream")


class BatchesController(Controller):
    """Runs batches.

    A batch is many requests that are processed within a day, at a separate price.
    """

    path = "/v1/batches"
    response_headers = _PRIVATE

    @post(
        "/",
        status_code=200,
        opt={
            "operation": _operation(
                id="create_batch",
                summary="Run the requests of a file",
                errors=(*_ERRORS, BudgetExhausted, NotFound),
                body=(Content(type=NewBatch, summary="A file for one route", example=_NEW_BATCH),),
            )
        },
    )
    async def create_batch(
        self, request: AnyRequest, batches: Batches, endpoints: Endpoints
    ) -> BatchView:
        """Run every line of a file as a request to one inference route, within 24 hours."""
        check_budget(_principal(request))
        data = await read_json(request, NewBatch)
        found = endpoints.find(data.endpoint)
        if found is None or not found.route.takes_json:
            raise InvalidRequest(
                "`endpoint` must be an inference route such as `/v1/classify`, not"
                f" `{data.endpoint}`."
            )
        after = data.output_expires_after
        batch = await batches.create(
            _principal(request),
            endpoint=data.endpoint,
            input_file=data.input_file_id,
            window=data.completion_window,
            metadata=data.metadata,
            output_expires_after=None if after is None else after.seconds,
        )
        return batch_view(batch)

    @get(
        "/",
        opt={
            "operation": _operation(
                id="list_batches",
                summary="Your batches",
                errors=(*_ERRORS, NotFound),
                about={
                    "after": _AFTER | {"example": "batch_5f2c"},
                    "limit": {"description": "The number of batches on a page.", "example": 20},
                },
            )
        },
    )
    async def list_batches(
        self,
        request: AnyRequest,
        batches: Batches,
        after: FromQuery[str | None] = None,
        limit: Annotated[int, QueryParameter(ge=1, le=_MAX_BATCHES)] = 20,
    ) -> BatchList:
        """Return a page of the tenant's batches, newest first."""
        found = await batches.page(_principal(request), limit=limit + 1, after=after)
        data = [batch_view(batch) for batch in found[:limit]]
        return BatchList(
            data=data,
            first_id=data[0].id if data else None,
            last_id=data[-1].id if data else None,
            has_more=len(found) > limit,
        )

    @get(
        "/{batch_id:str}",
        opt={
            "operation": _operation(
                id="get_batch", summary="One batch", errors=(*_ERRORS, NotFound), about=_BATCH
            )
        },
    )
    async def get_batch(
        self, batch_id: FromPath[str], request: AnyRequest, batches: Batches
    ) -> BatchView:
        """Return a batch and its progress."""
        return batch_view(await batches.get(_principal(request), batch_id))

    @post(
        "/{batch_id:str}/cancel",
        status_code=200,
        opt={
            "operation": _operation(
                id="cancel_batch",
                summary="Cancel a batch",
                errors=(*_ERRORS, NotFound, Conflict),
                about=_BATCH,
            )
        },
    )
    async def cancel_batch(
        self, batch_id: FromPath[str], request: AnyRequest, batches: Batches
    ) -> BatchView:
        """Cancel a batch. Its status is `cancelling` until its files have all computed results."""
        return batch_view(await batches.cancel(_principal(request), batch_id))


def expiry_of(files: TenantFiles, fields: Mapping[str, str]) -> int | None:
    """Return the seconds for which a form asks to keep its file, or `None` if it does not ask.

    Raises:
        InvalidRequest: the fields are malformed, or the time is too short or too long.
    """
    if fields.get("expires_after[anchor]", "created_at") != "created_at":
        raise InvalidRequest("`expires_after[anchor]` must be `created_at`.")
    seconds = fields.get("expires_after[seconds]")
    if seconds is None:
        return None
    if not (seconds.isascii() and seconds.isdigit()):
        raise InvalidRequest("`expires_after[seconds]` must be a number.")
    found = int(seconds[:12])
    files.check_life(found)
    return found


def _principal(request: AnyRequest) -> Principal:
    principal: Principal = request.scope["state"][PRINCIPAL]
    return principal


OPENAI_BATCHES = Dialect(
    name=_NAME,
    title=OPENAI.title,
    description="Files and batches for OpenAI's clients.",
    routes={},
    handlers=(FilesController, BatchesController),
    errors=OPENAI_ERRORS,
    paths=("/v1/files", "/v1/batches"),
)
