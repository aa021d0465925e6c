"""The shipped balancer, a real HAProxy, before real gateways that stop, move and are killed."""

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from signal import SIGTERM

import httpx
import pytest
from grpc import StatusCode

from testing.loopback import no_authorities
from testing.ports import free_port
from testing.raw_http import KEY, post
from testing.stub_process import StubProcess, stub_process
from testing.valkey import Valkey
from testing.waiting import eventually, until
from tests.support.gateway_process import GatewayProcess
from tests.support.name_server import NameServer
from tests.support.rpc import RpcClient, message, packed
from tests.support.steady_load import SteadyLoad
from tests.support.worker import classify

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.system,
    pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed"),
]
_SHIPPED = Path(__file__).parents[2] / "deploy" / "haproxy.cfg"
_REQUEST = post("/v1/classify", classify("a text"))


class Site:
    """A balancer on `port`, and what it needs to start gateways that `names` lead to."""

    def __init__(self, folder: Path, redis: str, stub: StubProcess, names: NameServer) -> None:
        self.port = free_port()
        self.names = names
        self._folder = folder
        self._redis = redis
        self._stub = stub
        self.grpc_port = free_port()
        self.ports = {name: free_port() for name in ("gateway-1", "gateway-2")}
        self.grpc_ports = {name: free_port() for name in self.ports}

    def configuration(self) -> Path:
        """Return the shipped configuration, with the addresses of the test."""
        text = _SHIPPED.read_text()
        for shipped, here in (
            ("bind :8080", f"bind 127.0.0.1:{self.port}"),
            ("bind :8001", f"bind 127.0.0.1:{self.grpc_port}"),
            ("parse-resolv-conf", f"nameserver test 127.0.0.1:{self.names.port}"),
            # A busy machine must not let a check of a gateway that works fail.
            ("timeout connect 1s", "timeout connect 1s\n    timeout check 30s"),
            *((f"{name}:8080\n", f"{name}:{port}\n") for name, port in self.ports.items()),
            *((f"{name}:8001 ", f"{name}:{port} ") for name, port in self.grpc_ports.items()),
        ):
            assert shipped in text
            text = text.replace(shipped, here)
        path = self._folder / "haproxy.cfg"
        path.write_text(text)
        return path

    def gateway(self, name: str, host: str) -> GatewayProcess:
        """Return a gateway, to be entered, that `name` leads to from now on."""
        self.names.names[name] = host
        return GatewayProcess(
            self._folder,
            name,
            redis=self._redis,
            stub=self._stub,
            host=host,
            port=self.ports[name],
            SLUICEGATE_GRPC_PORT=str(self.grpc_ports[name]),
            SLUICEGATE_SHUTDOWN_DELAY="3",
            SLUICEGATE_DRAIN="1",
            SLUICEGATE_TRUSTED_PROXIES="127.0.0.0/8",
        )

    def load(self) -> SteadyLoad:
        """Return a load of 60 requests a second through the balancer."""
        return SteadyLoad(self.port, _REQUEST, rate=60.0)

    async def call(self, client: RpcClient) -> str:
        """Make a call of gRPC through the balancer; return how it ended."""
        item = {"name": "INPUT", "datatype": "BYTES", "shape": [1, 1]}
        sent = message(
            "ModelInferRequest",
            model_name="stub",
            inputs=[item],
            raw_input_contents=[packed('"a text"')],
        )
        reply = await client.ask("ModelInfer", sent)
        return f"{reply.code.name} {reply.details}"

    async def is_answering(self) -> bool:
        """Return whether a request through the balancer is answered."""
        headers = {"authorization": f"Bearer {KEY}"}
        body = {"model": "stub", "input": ["a text"]}
        url = f"http://127.0.0.1:{self.port}/v1/classify"
        async with httpx.AsyncClient(
            headers=headers, timeout=60, verify=no_authorities()
        ) as client:
            try:
                return (await client.post(url, json=body)).status_code == 200
            except httpx.TransportError:
                return False


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def stub() -> Iterator[StubProcess]:
    with stub_process(backend_id="eu-1") as running:
        yield running


@pytest.fixture
async def site(tmp_path: Path, valkey_server: Valkey, stub: StubProcess) -> AsyncIterator[Site]:
    valkey_server.flush()
    async with NameServer() as names:
        made = Site(tmp_path, valkey_server.url, stub, names)
        async with balancer(made.configuration()):
            yield made


@asynccontextmanager
async def balancer(configuration: Path) -> AsyncIterator[None]:
    """Run HAProxy, in the foreground as in its container."""
    process = await asyncio.create_subprocess_exec(
        *("haproxy", "-W", "-db", "-f", str(configuration)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


def test_the_shipped_configuration_is_valid() -> None:
    subprocess.run(
        ["haproxy", "-c", "-f", str(_SHIPPED)],  # noqa: S607
        check=True,
        capture_output=True,
        timeout=60,
    )


async def test_one_of_two_gateways_is_stopped_and_nothing_is_lost(site: Site) -> None:
    async with (
        site.gateway("gateway-1", "127.0.7.1") as leaving,
        site.gateway("gateway-2", "127.0.7.2"),
    ):
        await eventually(site.is_answering, within=60)
        async with site.load() as sent, RpcClient(site.grpc_port, key=KEY) as client:
            calls = [await site.call(client) for _ in range(4)]
            await until(lambda: sent.answered > 60, within=60)
            leaving.signal(SIGTERM)

            async def has_left() -> bool:
                calls.append(await site.call(client))
                return not leaving.is_running()

            await eventually(has_left, within=90, every=0.05)
            calls += [await site.call(client) for _ in range(4)]
            after = sent.answered
            await until(lambda: sent.answered > after + 60, within=60)

    assert set(calls) == {"OK "}
    assert (set(sent.statuses), sent.refused, sent.broken) == ({200}, 0, [])


async def test_a_gateway_that_is_live_but_not_ready_answers_calls(
    site: Site, stub: StubProcess
) -> None:
    stub.process.kill()

    async with (
        site.gateway("gateway-1", "127.0.7.1"),
        RpcClient(site.grpc_port, key=KEY) as client,
    ):

        async def is_live() -> bool:
            reply = await client.ask("ServerLive")
            return reply.code is StatusCode.OK and reply.message.live

        await eventually(is_live, within=60, every=0.1)
        ready = await client.ask("ServerReady")

    assert (ready.code, ready.message.ready) == (StatusCode.OK, False)


async def test_a_gateway_that_comes_back_elsewhere_is_found_without_a_restart(site: Site) -> None:
    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            await writer.drain()

    for host in ("127.0.7.1", "127.0.7.11"):
        site.names.names["gateway-1"] = host
        async with await asyncio.start_server(answers, host, site.ports["gateway-1"]):
            await eventually(site.is_answering, within=60, every=0.1)
        assert not await site.is_answering()


async def test_without_gateways_the_balancer_says_so_in_a_problem(site: Site) -> None:
    async def refused() -> bool:
        async with httpx.AsyncClient(verify=no_authorities()) as client:
            try:
                answer = await client.get(f"http://127.0.0.1:{site.port}/v1/models")
            except httpx.TransportError:
                return False
        problem = answer.json()
        return (
            answer.status_code == 503
            and problem["code"] == "overloaded"
            and answer.headers["content-type"] == "application/problem+json"
            and answer.headers["retry-after"] == "1"
        )

    await eventually(refused, within=60)


async def test_a_request_that_was_sent_is_not_sent_again(site: Site) -> None:
    """A gateway that dies with a request is not followed by another one with it."""
    seen = 0

    async def dies(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal seen
        with closing(writer):
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"POST"):
                seen += 1
            else:  # a health check
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                await writer.drain()

    for number in (1, 2):
        site.names.names[f"gateway-{number}"] = f"127.0.7.{number}"
    servers = [
        await asyncio.start_server(dies, host, site.ports[name])
        for name, host in site.names.names.items()
    ]

    async def was_tried() -> bool:
        assert not await site.is_answering()
        return seen > 0

    await eventually(was_tried, within=60, every=0.1)

    assert seen == 1
    for server in servers:
        server.close()
