"""The files of TLS to backends: whatever becomes of them, they are looked at again."""

import asyncio
from pathlib import Path

import pytest

from sluicegate.gateway.errors import ConfigurationError
from sluicegate.gateway.sockets.certificate_files import follow_files
from sluicegate.gateway.upstream.tls import ClientTls
from testing.certificates import Authority
from testing.waiting import until


@pytest.mark.parametrize("which", ["certificate", "key"])
def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path, which: str) -> None:
    """It is there, but not to be read: as one that its owner has just put there."""
    chain, key = Authority(tmp_path).pair("gateway", "gateway")
    unreadable = chain if which == "certificate" else key
    unreadable.unlink()
    unreadable.mkdir()

    with pytest.raises(ConfigurationError) as refused:
        ClientTls(certificate=chain, key=key).renew()

    assert str(unreadable) in (refused.value.file or "")


@pytest.mark.anyio
async def test_files_are_followed_after_one_could_not_be_opened(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    chain, key = authority.pair("gateway", "gateway")
    tls = ClientTls(certificate=chain, key=key)
    tls.renew()
    first = tls.context
    following = asyncio.create_task(follow_files(tls.renew, 0.01))

    key.unlink()
    key.mkdir()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(following), 0.1)
    key.rmdir()
    authority.pair("gateway", "gateway")
    await until(lambda: tls.context is not first)

    following.cancel()
