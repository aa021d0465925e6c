"""Serves the console's scripts and styles. Each URL contains a digest of the file's contents."""

from hashlib import blake2b
from pathlib import Path

import msgspec
from litestar import Response, get
from litestar.di import NamedDependency
from litestar.params import FromPath

from sluicegate.gateway.errors import NotFound

_MEDIA = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_FOREVER = {"Cache-Control": "public, max-age=31536000, immutable"}


class Asset(msgspec.Struct, frozen=True, kw_only=True):
    """A static file."""

    content: bytes
    media: str
    digest: str


class Assets:
    """Holds the static files of a folder in memory."""

    def __init__(self, folder: Path) -> None:
        self._found = {
            path.name: _read(path) for path in sorted(folder.iterdir()) if path.suffix in _MEDIA
        }

    def url(self, name: str) -> str:
        """Return the URL of a file. The URL changes when the file's contents change."""
        return f"/console/static/{self._found[name].digest}/{name}"

    def find(self, digest: str, name: str) -> Asset:
        """Return a file.

        Raises:
            NotFound: there is no file of this name with this digest.
        """
        asset = self._found.get(name)
        if asset is None or asset.digest != digest:
            raise NotFound("There is no such file. Reload the page.")
        return asset


def _read(path: Path) -> Asset:
    content = path.read_bytes()
    digest = blake2b(content, digest_size=8).hexdigest()
    return Asset(content=content, media=_MEDIA[path.suffix], digest=digest)


@get(
    "/static/{digest:str}/{name:str}",
    opt={"public": True, "without_session": True},
    include_in_schema=False,
)
async def static_file(
    digest: FromPath[str], name: FromPath[str], assets: NamedDependency[Assets]
) -> Response[bytes]:
    """Return a file. Browsers may cache it for ever."""
    asset = assets.find(digest, name)
    return Response(asset.content, media_type=asset.media, headers=_FOREVER)
