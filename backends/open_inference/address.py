"""Where a model runs that another server runs."""

from typing import Annotated, Any
from urllib.parse import quote

import msgspec
from typing_extensions import override

_Path = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class Upstream(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model of a server; without a `version` the one that the server chooses.

    A run may take `timeout` seconds, and `runs` are in flight at a time.
    """

    url: Annotated[str, msgspec.Meta(pattern=r"^https?://[^/?#@\s]+(/[^?#\s]*)?$")]
    model: _Path
    version: _Path | None = None
    timeout: Annotated[float, msgspec.Meta(gt=0, le=300)] = 5.0
    runs: Annotated[int, msgspec.Meta(ge=1, le=256)] = 4

    @property
    def path(self) -> str:
        """The path of the model, below the URL."""
        version = f"/versions/{quote(self.version, safe='')}" if self.version else ""
        return f"/v2/models/{quote(self.model, safe='')}{version}"

    @override
    def __str__(self) -> str:
        """Return what messages call it."""
        version = f" version {self.version}" if self.version else ""
        return f"`{self.model}`{version} of {self.url}"


class TensorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a server says of an input or output; a size is -1 where it changes."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """What a server says of a model."""

    name: str
    inputs: list[TensorInfo]
    outputs: list[TensorInfo]
    versions: list[str] | None = None
    platform: str = ""
    parameters: dict[str, Any] | None = None


class ServerMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """What a server says of itself."""

    extensions: list[str] = []
