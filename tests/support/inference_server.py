"""Serves a graph in ONNX Runtime by the Open Inference Protocol v2, for backends to call."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import onnxruntime  # type: ignore[import-untyped]
from typing_extensions import override

_KINDS = {"tensor(int64)": "INT64", "tensor(int32)": "INT32", "tensor(float)": "FP32"}
_DATATYPES = {"float32": "FP32", "float64": "FP64", "int32": "INT32"}
_NUMBERS: dict[str, Any] = {"INT64": np.int64, "INT32": np.int32}
_LENGTH = "Inference-Header-Content-Length"
Outputs = dict[str, np.ndarray[Any, Any]]


class InferenceServer(ThreadingHTTPServer):
    """Serves one graph as model `name`. What its attributes say may change while it serves."""

    daemon_threads = True

    def __init__(self, graph: bytes, *, name: str, binary: bool, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
        self.name = name
        self.binary = binary
        self.ready = self.healthy = True
        self.versions = ["1"]
        self.answers_as = "1"
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.most_rows: int | None = None
        self.changes: dict[str, Any] = {}
        # Changes the outputs of a run, by their names.
        self.spoil: Callable[[Outputs], Outputs] = lambda outputs: outputs
        # Bytes of a response that are kept back.
        self.missing = 0
        self.token = ""
        self.runs: list[dict[str, Any]] = []
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
            "name": self.name,
            "versions": self.versions,
            "platform": "onnx",
            "inputs": [_tensor(node) for node in self.session.get_inputs()],
            "outputs": [_tensor(node) for node in self.session.get_outputs()],
        } | self.changes

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
        self.runs.append(request)
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
        if self.most_rows is not None and len(feeds["input_ids"]) > self.most_rows:
            raise ValueError("too many rows")
        results = self.spoil(dict(zip(names, self.session.run(names, feeds), strict=True)))
        outputs, raw = [], []
        for name, values in results.items():
            kind = _DATATYPES[values.dtype.name]
            output: dict[str, Any] = {"name": name, "datatype": kind, "shape": values.shape}
            if self.binary:
                raw.append(values.tobytes())
                output["parameters"] = {"binary_data_size": len(raw[-1])}
            else:
                output["data"] = values.ravel().tolist()
            outputs.append(output)
        answer = {"model_name": self.name, "model_version": self.answers_as, "outputs": outputs}
        head = json.dumps(answer).encode()
        return head + b"".join(raw), len(head)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: InferenceServer

    def do_GET(self) -> None:
        extensions = ["binary_tensor_data"] if self.server.binary else []
        if self.server.most_rows is not None:
            extensions.append("model_configuration")
        path = self.path.replace("/versions/1", "").replace(f"/{self.server.name}", "/NAME")
        if not self._is_let_in():
            self._answer(401, b"{}")
        elif path == "/v2":
            self._answer(200, json.dumps({"name": "test", "extensions": extensions}).encode())
        elif path == "/v2/models/NAME/ready":
            self._answer(200 if self.server.ready else 400, b"")
        elif path == "/v2/health/ready":
            self._answer(200 if self.server.healthy else 400, b"")
        elif path == "/v2/models/NAME/config":
            self._answer(200, json.dumps({"max_batch_size": self.server.most_rows}).encode())
        elif path == "/v2/models/NAME":
            self._answer(200, json.dumps(self.server.describe()).encode())
        else:
            self._answer(404, b"{}")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.status is not None or not self._is_let_in():
            self._answer(self.server.status or 401, b"{}")
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

    def _is_let_in(self) -> bool:
        token = self.server.token
        return not token or self.headers.get("Authorization") == f"Bearer {token}"

    def _answer(self, status: int, body: bytes, length: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if length is not None:
            self.send_header(_LENGTH, str(length))
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[: len(body) - self.server.missing])
        self.close_connection = bool(self.server.missing)


def _tensor(node: Any) -> dict[str, Any]:
    shape = [size if isinstance(size, int) else -1 for size in node.shape]
    return {"name": node.name, "datatype": _KINDS[node.type], "shape": shape}


@contextmanager
def inference_server(
    graph: bytes, *, name: str = "remote", binary: bool = True, port: int = 0
) -> Iterator[InferenceServer]:
    """Serve a graph until the context ends."""
    with InferenceServer(graph, name=name, binary=binary, port=port) as server:
        thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.02))
        thread.start()
        try:
            yield server
        finally:
            server.gate.set()
            server.shutdown()
            server.cut()
            thread.join()
