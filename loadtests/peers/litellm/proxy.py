"""Runs LiteLLM's proxy with its Redis cache, which holds all answers.

The proxy has a virtual environment of its own (`make .venv-peers/litellm/.installed`). It cannot
classify, so requests ask for embeddings. The proxy makes up short embeddings without a model.
"""

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import msgspec
from redis import Redis

from loadtests.generator import Target
from loadtests.machine import pin
from loadtests.peers.servers import PeerFailed, serving
from testing.ports import free_port
from testing.valkey import Valkey

_PROGRAM = Path(__file__).parents[3] / ".venv-peers" / "litellm" / "bin" / "litellm"
_KEY = "sk-litellm-0123456789"
# Neither call home nor write logs.
_ALONE = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOG": "ERROR",
    "DISABLE_ADMIN_UI": "True",
}
_EMBEDDING = [0.125] * 16


def bodies(texts: Sequence[str]) -> list[bytes]:
    """Return a request for each text."""
    return [msgspec.json.encode({"model": "stub", "input": text}) for text in texts]


@contextlib.contextmanager
def proxy(folder: Path, requests: Sequence[bytes], *, core: int, others: int) -> Iterator[Target]:
    """Run the proxy on `core` and its Redis, which has all answers, on `others`.

    Raises:
        PeerFailed: LiteLLM is not installed, does not become ready, or does not answer from Redis.
    """
    if not _PROGRAM.exists():
        raise PeerFailed("not installed: `make .venv-peers/litellm/.installed`")
    folder.mkdir()
    port = free_port()
    with Valkey(port=free_port()) as redis:
        config = folder / "config.yaml"
        config.write_text(json.dumps(_document(redis.port)))  # JSON is YAML
        command = ["taskset", "-c", str(core), str(_PROGRAM), "--config", str(config)]
        command += ["--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
        command += ["--telemetry", "False"]
        headers = (("authorization", f"Bearer {_KEY}"),)
        target = Target(host="127.0.0.1", port=port, path="/v1/embeddings", headers=headers)
        with serving(command, f"http://127.0.0.1:{port}/health/liveliness", _ALONE):
            _fill(target, requests, redis)
            pin([redis.pid], others)
            yield target


def _fill(target: Target, requests: Sequence[bytes], redis: Valkey) -> None:
    """Send every request twice, and make sure that the second answers came from Redis."""
    url = f"http://{target.host}:{target.port}"
    with httpx.Client(base_url=url, headers=dict(target.headers), timeout=20) as client:
        for body in [*requests, *requests]:
            client.post(target.path, content=body).raise_for_status()
    with Redis.from_url(redis.tcp_url) as cache:
        if int(str(cache.info("stats")["keyspace_hits"])) < len(requests):
            raise PeerFailed("it did not answer from its cache")


def _document(redis_port: int) -> dict[str, object]:
    parameters = {"model": "openai/stub", "api_key": "none", "mock_response": _EMBEDDING}
    cache = {"type": "redis", "host": "127.0.0.1", "port": redis_port}
    return {
        "model_list": [{"model_name": "stub", "litellm_params": parameters}],
        "litellm_settings": {"cache": True, "cache_params": cache},
        "general_settings": {"master_key": _KEY},
    }
