"""Where a model runs that another server runs."""

import re
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
from typing_extensions import override

from backends.errors import StartProblem
from backends.settings import PREFIX, BackendSettings

_URL = r"https?://[^/?#@\s]+(/[^?#\s]*)?"
_Path = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class RemoteModelServer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model of a server; without a `version` the one that the server chooses.

    Without a `url` it is of the server that the process is told of. A `revision` is for people to
    change when the server runs other weights under the same version. A run may take `timeout`
    seconds, and `runs` are in flight at a time.
    """

    url: Annotated[str, msgspec.Meta(pattern=f"^({_URL})?$")] = ""
    model: _Path
    version: _Path | None = None
    revision: str = ""
    timeout: Annotated[float, msgspec.Meta(gt=0, le=300)] = 5.0
    runs: Annotated[int, msgspec.Meta(ge=1, le=256)] = 4

    @property
    def path(self) -> str:
        """The path of the model, below the URL."""
        version = f"/versions/{quote(self.version, safe='')}" if self.version else ""
        return f"/v2/models/{quote(self.model, safe='')}{version}"

    @property
    def title(self) -> str:
        """What callers are told of it: not where it is."""
        version = f" version {self.version}" if self.version else ""
        return f"`{self.model}`{version} of another server"

    @override
    def __str__(self) -> str:
        """Return what operators are told of it."""
        version = f" version {self.version}" if self.version else ""
        return f"`{self.model}`{version} of {self.url}"


class Servers(msgspec.Struct, frozen=True, kw_only=True):
    """What a process is told of other servers: the usual one, and the token that this one wants.

    With `runs_graphs` it runs every graph of the repository, as it were its own repository: by the
    name of the folder, with the number of the revision as version.
    """

    url: str = ""
    token: str = ""
    runs: int = 4
    runs_graphs: bool = False

    def find(
        self, upstream: RemoteModelServer | None, *, name: str, version: str
    ) -> RemoteModelServer | None:
        """Return where a model runs if not here; `upstream` is what it says of itself."""
        if upstream is not None:
            return msgspec.structs.replace(upstream, url=upstream.url or self.url)
        if not self.runs_graphs:
            return None
        return RemoteModelServer(url=self.url, model=name, version=version, runs=self.runs)

    def token_for(self, upstream: RemoteModelServer) -> str:
        """Return the token to send; no other server than the one it is for gets to know it."""
        return self.token if upstream.url == self.url else ""


def servers(settings: BackendSettings) -> Servers:
    """Return what the settings say of other servers.

    Raises:
        StartProblem: there is no URL where one is needed, or it is none.
    """
    runs_graphs = settings.provider == "open_inference"
    if not re.fullmatch(_URL if runs_graphs else f"({_URL})?", settings.upstream_url):
        raise StartProblem(
            f"`{PREFIX}UPSTREAM_URL` must be the address of a server of the Open Inference "
            "Protocol, as `http://triton:8000`"
        )
    return Servers(
        url=settings.upstream_url,
        token=settings.upstream_token,
        runs=settings.upstream_runs,
        runs_graphs=runs_graphs,
    )


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


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What Triton says of a model's batches; 0 is a model whose shapes are all there is to say."""

    max_batch_size: int = 0


class ServerMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """What a server says of itself."""

    extensions: list[str] = []
