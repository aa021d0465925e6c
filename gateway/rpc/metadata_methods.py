"""Defines the methods about server and models by the HTTP routes with the same content.

Fields of messages have the names of the JSON fields of these routes.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec
from google.protobuf.json_format import ParseDict

from sluicegate.gateway.api.http import HttpReply
from sluicegate.gateway.errors import ModelNotFound
from sluicegate.gateway.rpc.in_process import ApplicationRequest
from sluicegate.gateway.rpc.messages import Message

_OK: Final = 200
_NOT_READY: Final = frozenset({400, 404, 503})


class MetadataMethod(msgspec.Struct, frozen=True, kw_only=True):
    """Defines the request to the application for a method, and the content of the answer."""

    call: Callable[[Message], ApplicationRequest]
    """Makes the request, or raises `ModelNotFound` if no model can have the name."""
    field: str = ""
    """The field for all of the answer's JSON. If empty, the message has the fields of the JSON."""
    is_probe: bool = False
    """Whether the status is the answer and says if `field` is true."""
    is_public: bool = False
    """Whether the method needs no key."""

    def answer(self, reply: HttpReply, response: Message) -> Message | None:
        """Return a message of the class `response`, or `None` if the reply is an error."""
        if self.is_probe:
            is_answer = reply.status == _OK or reply.status in _NOT_READY
            return response(**{self.field: reply.status == _OK}) if is_answer else None
        if reply.status != _OK:
            return None
        found: Any = msgspec.json.decode(reply.body)
        written = {self.field: found} if self.field else found
        return ParseDict(written, response(), ignore_unknown_fields=True)


def _get(path: str) -> Callable[[Message], ApplicationRequest]:
    return lambda _: ApplicationRequest("GET", path)


def _get_of_model(rest: str = "") -> Callable[[Message], ApplicationRequest]:
    return lambda message: ApplicationRequest("GET", f"{_model_path(message)}{rest}")


def _get_statistics(message: Message) -> ApplicationRequest:
    path = _model_path(message) if message.name else "/v2/models"
    return ApplicationRequest("GET", f"{path}/stats")


def _post_index(message: Message) -> ApplicationRequest:
    body = msgspec.json.encode({"ready": message.ready})
    return ApplicationRequest("POST", "/v2/repository/index", body)


def _model_path(message: Message) -> str:
    if not message.name or "/" in message.name + message.version:
        raise ModelNotFound("No model has this name and version; `RepositoryIndex` lists models.")
    version = f"/versions/{message.version}" if message.version else ""
    return f"/v2/models/{message.name}{version}"


METADATA_METHODS: Final = {
    "ServerLive": MetadataMethod(
        call=_get("/v2/health/live"), field="live", is_probe=True, is_public=True
    ),
    "ServerReady": MetadataMethod(
        call=_get("/v2/health/ready"), field="ready", is_probe=True, is_public=True
    ),
    "ModelReady": MetadataMethod(call=_get_of_model("/ready"), field="ready", is_probe=True),
    "ServerMetadata": MetadataMethod(call=_get("/v2")),
    "ModelMetadata": MetadataMethod(call=_get_of_model()),
    "ModelConfig": MetadataMethod(call=_get_of_model("/config"), field="config"),
    "ModelStatistics": MetadataMethod(call=_get_statistics),
    "RepositoryIndex": MetadataMethod(call=_post_index, field="models"),
}
"""The methods by their names; messages are called `{name}Request` and `{name}Response`."""

_OPERATORS: Final = (
    "Models are loaded and unloaded by operators: they put them into the model repository, and call"
    " `sluicegate models reload`."
)
_NO_SHARED_MEMORY: Final = "There is no shared memory with clients; send the tensors."
_NO_SETTINGS: Final = (
    "Traces and logs are set by the gateway's operators, in the environment of its processes."
)
REFUSED_METHODS: Final = {
    "RepositoryModelLoad": _OPERATORS,
    "RepositoryModelUnload": _OPERATORS,
    **{
        f"{kind}SharedMemory{what}": _NO_SHARED_MEMORY
        for kind in ("System", "Cuda")
        for what in ("Status", "Register", "Unregister")
    },
    "TraceSetting": _NO_SETTINGS,
    "LogSettings": _NO_SETTINGS,
}
"""Methods of Triton that are not implemented, and what to do instead."""
