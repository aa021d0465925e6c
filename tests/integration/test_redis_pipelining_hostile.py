"""Whatever answers in the place of Redis, callers get the replies to their commands, or errors."""

import asyncio
from random import Random

import hiredis
import pytest

from sluicegate.gateway.redis.pipeline import StandaloneClient
from testing.waiting import until

pytestmark = pytest.mark.anyio


class Mischief:
    """Echoes the tokens of commands, until it does something else and hangs up."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parser = hiredis.Reader(notEnoughData=None)
        self.open += 1
        try:
            while data := await reader.read(65_536):
                parser.feed(data)
                while (command := parser.gets()) is not None:
                    if not await self._answer(command[1], writer):
                        return
                    if self._random.random() < 0.01:
                        await reader.read(-1)  # says nothing any more
                        return
        except ConnectionError:
            pass
        finally:
            writer.close()
            self.open -= 1

    async def _answer(self, token: bytes, writer: asyncio.StreamWriter) -> bool:
        sound = b"$%d\r\n%b\r\n" % (len(token), token)
        what = self._random.random()
        if what < 0.02:
            writer.write(sound[: self._random.randrange(len(sound))])
            return False
        if what < 0.04:
            writer.write(self._random.choice([b"HTTP/1.1 400\r\n", b"$x\r\n", b"*-7\r\n", b"\x00"]))
            return False
        at = self._random.randrange(len(sound))
        writer.write(sound[:at])
        if what < 0.3:
            await writer.drain()
            await asyncio.sleep(0)  # the client reads the first part by itself
        writer.write(sound[at:])
        return True


@pytest.mark.parametrize("seed", range(4))
async def test_no_reply_is_lost_or_crossed(seed: int) -> None:
    random = Random(seed)
    mischief = Mischief(random)
    server = await asyncio.start_server(mischief.serve, "127.0.0.1", 0)
    client = StandaloneClient(
        f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}", timeout=0.05
    )
    answered = failed = left = 0

    async def caller(name: int) -> None:
        nonlocal answered, failed, left
        for number in range(60):
            tokens = [b"%d-%d-%d" % (name, number, n) for n in range(random.randrange(1, 4))]
            asked = asyncio.create_task(client.execute([("ECHO", token) for token in tokens]))
            if random.random() < 0.1:
                await asyncio.wait({asked}, timeout=0)  # it begins
                asked.cancel()
            try:
                assert await asked == tokens
                answered += 1
            except OSError:
                failed += 1
            except asyncio.CancelledError:
                left += 1

    async with asyncio.timeout(30.0):
        await asyncio.gather(*(caller(n) for n in range(6)))
    await client.aclose()
    await until(lambda: mischief.open == 0)
    server.close()

    assert answered + failed + left == 360
    assert min(answered, failed, left) > 0
