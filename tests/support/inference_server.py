"""A server of the Open Inference Protocol v2 over ONNX Runtime: what a backend may call."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import onnxruntime  # type: ignore[import-untyped]
from typing_extensions import override

_KINDS = {"tensor(int64)": "INT64", "tensor(int32)": "INT32", "tensor(float)": "FP32"}
_NUMBERS: dict[str, Any] = {"INT64": np.int64, "INT32": np.int32}
_LENGTH = "Inference-Header-Content-Length"


class InferenceServer(ThreadingHTTPServer):
    """Serves one graph as model `remote`. What its attributes say may change while it serves."""

    daemon_threads = True

    def __init__(self, graph: bytes, *, binary: bool, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
        self.binary = binary
        self.ready = True
        self.versions = ["1"]
        self.status: int | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.connections = 0
        self.most_at_once = 0
        self._running = 0
        self._lock = threading.Lock()
        self._sockets: set[Any] = set()

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.server_port}"

    @override
    def get_request(self) -> Any:
        accepted = super().get_request()
        self.connections += 1
        self._sockets.add(accepted[0])
        return accepted

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that left."""

    def cut(self) -> None:
        """Close every connection from this side."""
        sockets, self._sockets = self._sockets, set()
        for accepted in sockets:
            self.shutdown_request(accepted)

    def describe(self) -> dict[str, Any]:
        """Return the model's metadata."""
        return {
            "name": "remote",
            "versions": self.versions,
            "platform": "onnx",
            "inputs": [_tensor(node) for node in self.session.get_inputs()],
            "outputs": [_tensor(node) for node in self.session.get_outputs()],
        }

    def infer(self, body: bytes, length: int) -> tuple[bytes, int]:
        """Return the body of a response and how much of it is JSON."""
        with self._lock:
            self._running += 1
            self.most_at_once = max(self.most_at_once, self._running)
        try:
            self.gate.wait(30)
            return self._infer(body, length)
        finally:
            with self._lock:
                self._running -= 1

    def _infer(self, body: bytes, length: int) -> tuple[bytes, int]:
        request = json.loads(body[:length])
        feeds, at = {}, length
        for tensor in request["inputs"]:
            kind = _NUMBERS[tensor["datatype"]]
            if "data" in tensor:
                values = np.array(tensor["data"], kind)
            else:
                size = tensor["parameters"]["binary_data_size"]
                values = np.frombuffer(body[at : at + size], kind)
                at += size
            feeds[tensor["name"]] = values.reshape(tensor["shape"])
        names = [output["name"] for output in request["outputs"]]
        results = self.session.run(names, feeds)
        outputs, raw = [], []
        for name, values in zip(names, results, strict=True):
            output = {"name": name, "datatype": "FP32", "shape": values.shape}
            if self.binary:
                raw.append(values.tobytes())
                output["parameters"] = {"binary_data_size": len(raw[-1])}
            else:
                output["data"] = values.ravel().tolist()
            outputs.append(output)
        head = json.dumps({"model_name": "remote", "outputs": outputs}).encode()
        return head + b"".join(raw), len(head)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: InferenceServer

    def do_GET(self) -> None:
        extensions = ["binary_tensor_data"] if self.server.binary else []
        path = self.path.replace("/versions/1", "")
        if path == "/v2":
            self._answer(200, json.dumps({"name": "test", "extensions": extensions}).encode())
        elif path == "/v2/models/remote/ready":
            self._answer(200 if self.server.ready else 503, b"")
        elif path == "/v2/models/remote":
            self._answer(200, json.dumps(self.server.describe()).encode())
        else:
            self._answer(404, b"{}")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.status is not None:
            self._answer(self.server.status, b"{}")
            return
        try:
            answer, length = self.server.infer(body, int(self.headers.get(_LENGTH, len(body))))
        except Exception:  # noqa: BLE001 - ONNX Runtime's errors have no common base but this one
            self._answer(400, b"{}")
            return
        self._answer(200, answer, length if self.server.binary else None)

    @override
    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""

    def _answer(self, status: int, body: bytes, length: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if length is not None:
            self.send_header(_LENGTH, str(length))
        self.end_headers()
        self.wfile.write(body)


def _tensor(node: Any) -> dict[str, Any]:
    shape = [size if isinstance(size, int) else -1 for size in node.shape]
    return {"name": node.name, "datatype": _KINDS[node.type], "shape": shape}


@contextmanager
def inference_server(
    graph: bytes, *, binary: bool = True, port: int = 0
) -> Iterator[InferenceServer]:
    """Serve a graph until the context ends."""
    with InferenceServer(graph, binary=binary, port=port) as server:
        thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.02))
        thread.start()
        try:
            yield server
        finally:
            server.gate.set()
            server.shutdown()
            server.cut()
            thread.join()
