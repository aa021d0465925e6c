"""Runs LiteLLM's proxy with its Redis cache before a model server without a model.

The proxy has packages of its own (`make .venv-peers/litellm/.installed`). It has no classification,
so the requests are for embeddings; these are short, and found in Redis.
"""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import msgspec
from redis import Redis

from gateway.settings import process_environment
from loadtests.generator import Target
from loadtests.machine import pin
from testing.ports import free_port
from testing.valkey import Valkey
from testing.waiting import wait_until

_ROOT = Path(__file__).parents[3]
_PROGRAM = _ROOT / ".venv-peers" / "litellm" / "bin" / "litellm"
_KEY = "sk-litellm-0123456789"
_PATH = "/v1/embeddings"
# No look at the network, no look back.
_ALONE = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOG": "ERROR",
    "DISABLE_ADMIN_UI": "True",
}


def is_installed() -> bool:
    """Tell whether its packages are there."""
    return _PROGRAM.exists()


def bodies(texts: Sequence[str]) -> list[bytes]:
    """Return the request of each text."""
    return [msgspec.json.encode({"model": "stub", "input": text}) for text in texts]


@contextlib.contextmanager
def proxy(folder: Path, requests: Sequence[bytes], *, core: int, others: int) -> Iterator[Target]:
    """Run the proxy on `core`, its Redis and the model server on `others`; Redis has all answers.

    Raises:
        RuntimeError: LiteLLM does not answer from Redis.
    """
    folder.mkdir()
    with contextlib.ExitStack() as stack:
        redis = stack.enter_context(Valkey(port=free_port()))
        model_port, port = free_port(), free_port()
        module = "loadtests.peers.litellm.model_server"
        model = stack.enter_context(_running([sys.executable, "-m", module, str(model_port)]))
        pin([model], others)
        config = folder / "config.yaml"
        config.write_text(json.dumps(_document(redis.port, model_port)))  # JSON is YAML
        command = ["taskset", "-c", str(core), str(_PROGRAM), "--config", str(config)]
        command += ["--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
        stack.enter_context(_running([*command, "--telemetry", "False"], log=folder / "log"))
        headers = (("authorization", f"Bearer {_KEY}"),)
        target = Target(host="127.0.0.1", port=port, path=_PATH, headers=headers)
        wait_until(lambda: _answers(target), within=90, what="LiteLLM answers")
        _fill(target, requests, redis)
        pin([redis.pid], others)
        yield target


def _fill(target: Target, requests: Sequence[bytes], redis: Valkey) -> None:
    """Ask everything twice, and make sure that the second answers were in Redis."""
    url = f"http://{target.host}:{target.port}"
    with httpx.Client(base_url=url, headers=dict(target.headers), timeout=20) as client:
        for body in [*requests, *requests]:
            client.post(target.path, content=body).raise_for_status()
    with Redis.from_url(redis.tcp_url) as cache:
        if int(str(cache.info("stats")["keyspace_hits"])) < len(requests):
            raise RuntimeError("LiteLLM did not answer from its cache")


def _document(redis_port: int, model_port: int) -> dict[str, object]:
    parameters = {"model": "openai/stub", "api_key": "none"}
    parameters["api_base"] = f"http://127.0.0.1:{model_port}/v1"
    cache = {"type": "redis", "host": "127.0.0.1", "port": redis_port}
    return {
        "model_list": [{"model_name": "stub", "litellm_params": parameters}],
        "litellm_settings": {"cache": True, "cache_params": cache},
        "general_settings": {"master_key": _KEY},
    }


def _answers(target: Target) -> bool:
    with contextlib.suppress(httpx.TransportError):
        url = f"http://{target.host}:{target.port}/health/liveliness"
        return httpx.get(url, timeout=2).is_success
    return False


@contextlib.contextmanager
def _running(command: list[str], *, log: Path | None = None) -> Iterator[int]:
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(log.open("wb")) if log else None
        child = subprocess.Popen(
            command,
            cwd=_ROOT,
            stdout=output,
            stderr=output,
            env=dict(process_environment()) | _ALONE,
        )
        try:
            yield child.pid
        finally:
            child.terminate()
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
