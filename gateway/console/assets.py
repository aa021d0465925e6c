"""Serves the console's scripts and styles under addresses that change with their contents."""

from hashlib import blake2b
from pathlib import Path

import msgspec
from litestar import Response, get
from litestar.di import NamedDependency
from litestar.params import FromPath

from gateway.errors import NotFound

_MEDIA = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_FOREVER = {"Cache-Control": "public, max-age=31536000, immutable"}


class Asset(msgspec.Struct, frozen=True, kw_only=True):
    """A file that pages load."""

    content: bytes
    media: str
    digest: str


class Assets:
    """Holds the files of a folder, read once."""

    def __init__(self, folder: Path) -> None:
        self._found = {
            path.name: _read(path) for path in sorted(folder.iterdir()) if path.suffix in _MEDIA
        }

    def url(self, name: str) -> str:
        """Return where pages load a file; the address is another one when the file is."""
        return f"/console/static/{self._found[name].digest}/{name}"

    def find(self, digest: str, name: str) -> Asset:
        """Return a file.

        Raises:
            NotFound: there is none of that name, or it has other contents.
        """
        asset = self._found.get(name)
        if asset is None or asset.digest != digest:
            raise NotFound("There is no such file; load the page again.")
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
    """Return a file, which a browser keeps for good."""
    asset = assets.find(digest, name)
    return Response(asset.content, media_type=asset.media, headers=_FOREVER)
