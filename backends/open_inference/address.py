"""Declares the address of a model on another server, and the server's metadata."""

import re
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
from typing_extensions import override

from sluicegate.backends.errors import StartProblem
from sluicegate.backends.settings import PREFIX, BackendSettings

_URL = r"https?://[^/?#@\s]+(/[^?#\s]*)?"
_Path = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class RemoteModelServer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Identifies a model on another server.

    An empty `url` means the default server of the settings. Without a `version`, the server chooses
    the version. Operators change `revision` after replacing weights under the same version. A run
    may take `timeout` seconds, and at most `runs` runs are in flight at a time.
    """

    url: Annotated[str, msgspec.Meta(pattern=f"^({_URL})?$")] = ""
    model: _Path
    version: _Path | None = None
    revision: str = ""
    timeout: Annotated[float, msgspec.Meta(gt=0, le=300)] = 5.0
    runs: Annotated[int, msgspec.Meta(ge=1, le=256)] = 4

    @property
    def path(self) -> str:
        """The path of the model, relative to the URL."""
        version = f"/versions/{quote(self.version, safe='')}" if self.version else ""
        return f"/v2/models/{quote(self.model, safe='')}{version}"

    @property
    def title(self) -> str:
        """The model's name in messages to callers, without the server's address."""
        return self._named("another server")

    @override
    def __str__(self) -> str:
        """Return the model's name in messages to operators, with the server's address."""
        return self._named(self.url)

    def _named(self, server: str) -> str:
        version = f" version {self.version}" if self.version else ""
        return f"`{self.model}`{version} of {server}"


class Servers(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the default server of a process and its token.

    With `runs_graphs`, this server runs every graph of the repository. Then the server must have
    each model under the name of the model's folder. The version on the server must be the number of
    the model's revision.
    """

    url: str = ""
    token: str = ""
    runs: int = 4
    runs_graphs: bool = False

    def find(
        self, upstream: RemoteModelServer | None, *, name: str, version: str
    ) -> RemoteModelServer | None:
        """Return the remote server of a model, or `None` if this process runs the model.

        `upstream` is the field of the model's manifest.
        """
        if upstream is not None:
            return msgspec.structs.replace(upstream, url=upstream.url or self.url)
        if not self.runs_graphs:
            return None
        return RemoteModelServer(url=self.url, model=name, version=version, runs=self.runs)

    def token_for(self, upstream: RemoteModelServer) -> str:
        """Return the token to send to a server; "" unless it is the default server."""
        return self.token if upstream.url == self.url else ""


def servers(settings: BackendSettings) -> Servers:
    """Return the default server of the settings.

    Raises:
        StartProblem: the URL is missing or not valid.
    """
    runs_graphs = settings.provider == "open_inference"
    if not re.fullmatch(_URL if runs_graphs else f"({_URL})?", settings.upstream_url):
        raise StartProblem(
            f"`{PREFIX}UPSTREAM_URL` must be the URL of a server that speaks the Open Inference "
            "Protocol, such as `http://triton:8000`"
        )
    return Servers(
        url=settings.upstream_url,
        token=settings.upstream_token,
        runs=settings.upstream_runs,
        runs_graphs=runs_graphs,
    )


class TensorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Describes an input or output of a model; -1 stands for a dimension of any size."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a server's metadata of a model."""

    name: str
    inputs: list[TensorInfo]
    outputs: list[TensorInfo]
    versions: list[str] | None = None
    platform: str = ""
    parameters: dict[str, Any] | None = None


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Holds Triton's batch configuration; 0 means that only tensor shapes limit a batch."""

    max_batch_size: int = 0


class ServerMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the metadata of a server."""

    extensions: list[str] = []
