"""Every program of the operators' reference sends the example of its route, in each language.

They are run against a listener that only records: some change what no example can know.
"""

import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, urlencode

import msgspec
import pytest
from typing_extensions import override

from tests.support.documents import documents, operations, parameter_examples

KEY = "admin-samples-0123456789"


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """A request as it came."""

    method: str
    target: str
    key: str
    body: object


class Recorder(ThreadingHTTPServer):
    """Answers every request, and keeps what came."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.sent: list[Sent] = []


class _Handler(BaseHTTPRequestHandler):
    server: Recorder

    def _record(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.sent.append(
            Sent(
                method=self.command,
                target=self.path,
                key=self.headers.get("Authorization", "").removeprefix("Bearer "),
                body=msgspec.json.decode(body) if body else None,
            )
        )
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    do_GET = do_PUT = do_POST = do_DELETE = _record  # noqa: N815 - the server's names

    @override
    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    with Recorder() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        monkeypatch.setenv("SLUICEGATE_ADMIN_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("SLUICEGATE_ADMIN_KEY", KEY)
        yield server
        server.shutdown()
        thread.join()


def programs(language: str) -> list[str]:
    """Return the program of each route in one language."""
    return [
        sample["source"]
        for _, _, operation in operations(documents()["operators"])
        for sample in operation["x-codeSamples"]
        if sample["lang"] == language
    ]


def examples() -> list[Sent]:
    """Return what each route's program is to send."""
    found = []
    for method, path, operation in operations(documents()["operators"]):
        given = parameter_examples(operation, "path")
        place = {name: quote(str(value)) for name, value in given.items()}
        query = parameter_examples(operation, "query")
        content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
        bodies = [example["value"] for example in content.get("examples", {}).values()]
        target = path.format(**place)
        found.append(
            Sent(
                method=method.upper(),
                target=f"{target}?{urlencode(query, doseq=True)}" if query else target,
                key="" if operation.get("security") == [] else KEY,
                body=bodies[0] if bodies else None,
            )
        )
    return found


def run(command: list[str | Path], text: str = "") -> None:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_python_program_sends_the_example(
    recorder: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    for program in programs("python"):
        exec(program, {})  # noqa: S102 - a program of this project

    assert recorder.sent == examples()
    assert capsys.readouterr().out.split() == ["{}"] * len(recorder.sent)


@pytest.mark.system
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is missing")
def test_every_curl_program_sends_the_example(recorder: Recorder) -> None:
    run(["/bin/sh"], "set -e\n" + "".join(programs("shell")))

    assert recorder.sent == examples()


@pytest.mark.system
@pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is missing")
def test_every_javascript_program_sends_the_example(recorder: Recorder, tmp_path: Path) -> None:
    path = tmp_path / "samples.mjs"
    path.write_text("".join(f"{{\n{program}}}\n" for program in programs("javascript")))

    run([shutil.which("node") or "", path])

    assert recorder.sent == examples()
