"""Receives files in `multipart/form-data` as a stream, without keeping them in memory."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, Final

from multipart import (  # type: ignore[import-untyped]
    MultipartError,
    MultipartSegment,
    PushMultipartParser,
    parse_options_header,
)

from sluicegate.gateway.batches.tenant_files import PURPOSES, Upload
from sluicegate.gateway.errors import InvalidRequest

_MAX_PARTS: Final = 16
_LONGEST_FIELD: Final = 4096
_LONGEST_NAME: Final = 255


class MultipartReader:
    """Receives one form. `fields` holds the form's values by name, and `upload` its file.

    `check` is called before the file is stored, and raises an error if fields are invalid.
    """

    def __init__(
        self,
        begin: Callable[[str], AbstractAsyncContextManager[Upload]],
        *,
        check: Callable[[Mapping[str, str]], object],
    ) -> None:
        self.fields: dict[str, str] = {}
        self.upload: Upload | None = None
        self._begin = begin
        self._check = check
        self._segment: Any = None  # Any: the parser has no types
        self._value = b""

    async def receive(self, content_type: str, chunks: AsyncIterator[bytes]) -> Upload:
        """Store the file's content, and return the upload.

        Raises:
            InvalidRequest: the body is not a form with a file.
        """
        kind, options = parse_options_header(content_type)
        boundary = options.get("boundary", "")
        if kind != "multipart/form-data" or not boundary:
            raise InvalidRequest("Send a form (`multipart/form-data`) with `purpose` and `file`.")
        async with AsyncExitStack() as stack:
            try:
                with PushMultipartParser(boundary, max_segment_count=_MAX_PARTS) as parser:
                    async for chunk in chunks:
                        for part in parser.parse(chunk):
                            await self._take(part, stack)
            except MultipartError as error:
                raise InvalidRequest(f"The form cannot be read: {error}.") from error
            if self.upload is None:
                raise InvalidRequest("The form has no part `file` with a file name; add it.")
            if self.fields.get("purpose") not in PURPOSES:
                raise InvalidRequest("`purpose` must be `batch`.")
            self._check(self.fields)
        return self.upload

    async def _take(self, part: Any, stack: AsyncExitStack) -> None:
        """Process a part of the form: its head, some of its bytes, or `None` at its end."""
        if isinstance(part, MultipartSegment):
            self._segment, self._value = part, b""
            if part.filename is not None:
                if part.name != "file" or self.upload is not None:
                    raise InvalidRequest("The form must have one file, in the part `file`.")
                name = part.filename[:_LONGEST_NAME] or "upload"
                self.upload = await stack.enter_async_context(self._begin(name))
        elif part and self._segment.filename is not None and self.upload is not None:
            await self.upload.write(bytes(part))
        elif part:
            self._value += part
            if len(self._value) > _LONGEST_FIELD:
                raise InvalidRequest(
                    f"The form's value `{self._segment.name[:80]}` is too long; send at most"
                    f" {_LONGEST_FIELD} bytes."
                )
        elif self._segment.filename is None:
            self.fields[self._segment.name] = self._value.decode(errors="replace")
