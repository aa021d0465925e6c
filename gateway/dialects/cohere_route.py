"""Serves native routes that have the same paths as routes of Cohere's API."""

from typing import Any

import msgspec
from typing_extensions import override

from sluicegate.gateway.api.inference_route import BodySource, Rendered
from sluicegate.gateway.api.native_routes import NativeRoute
from sluicegate.gateway.api.schemas import Body
from sluicegate.gateway.http.body_decoding import BodyDecoder
from sluicegate.gateway.types import Answer, RequestId, Usage


class SharedRoute(NativeRoute):
    """Serves a route that accepts two kinds of bodies: Sluicegate's own (native) and Cohere's.

    The argument `mark` names a field that only Cohere's body has.
    """

    def __init__(self, native: type[Body], of_cohere: type[Any], *, mark: str) -> None:
        super().__init__(native)
        self._decode_cohere = BodyDecoder(of_cohere)
        self._decode_mark = BodyDecoder(msgspec.defstruct("Marked", [(mark, msgspec.Raw)]))

    @override
    def decode(self, source: BodySource) -> Any:
        try:
            return super().decode(source)
        except msgspec.ValidationError:
            if not self._is_of_cohere(source.raw):
                raise
        return self._decode_cohere(source.raw)

    def _is_of_cohere(self, raw: bytes) -> bool:
        try:
            self._decode_mark(raw)
        except msgspec.ValidationError:
            return False
        return True

    @override
    def is_spliced(self, body: Any) -> bool:
        return isinstance(body, Body)

    @override
    def encode(self, body: Any, answer: Answer, usage: Usage, request_id: RequestId) -> Rendered:
        if isinstance(body, Body):
            return super().encode(body, answer, usage, request_id)
        return self.encode_cohere(body, answer, request_id)

    def encode_cohere(self, body: Any, answer: Answer, request_id: RequestId) -> Rendered:
        """Return the response to a request with Cohere's body."""
        raise NotImplementedError
