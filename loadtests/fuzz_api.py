"""Compares the answers of both listeners with their OpenAPI documents.

Schemathesis generates the requests. Requests of customers come first, because operators' requests
change the system's state.
"""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from loadtests.fuzz_dialects import backend
from loadtests.fuzzing import end_with, seeded_run
from loadtests.gateway import WIDE_LIMITS, Gateway, one_backend, running_gateway
from loadtests.options import seed
from testing.loopback import get
from testing.stub_process import stub_process

_KEY = "sk-a-key-of-whoever-reads-the-document"
_ADMIN_KEY = "admin-key-of-whoever-reads-the-document"
_CHECKS: tuple[str, ...] = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "missing_required_header",
    "allow_header_conformance",
    "ignored_auth",
)
# A request may ask for too short a time, and a published document may have no backends.
# Routes ignore unknown headers and query parameters, as HTTP servers do.
_OPTIONS = """
[generation]
allow-extra-parameters = false

[checks]
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 502, 503, 504]
# The body of a request that asks for no time at all has not arrived in time.
negative_data_rejection.expected-statuses = ["4xx", "5xx"]

# Clients of these send `null` for what they leave out, whatever the field. To the first route the
# answers are repeated: most requests have the idempotency key of the example.
[[operations]]
include-path-regex = "^/(tei|models)/|^/jina/v1/embeddings$"
checks.negative_data_rejection.expected-statuses = ["2xx", "4xx", "5xx"]
"""
_EXCLUDED = "rotate_key"
"""This operation would revoke the key that the other requests use."""
_ANY_METHOD = ("hugging_face_health", "hugging_face_info")
"""For these operations, `POST` is a valid method: it sends a request to some owner's model
`health`."""
DOCUMENTS = ("customers", "operators")


def differences(
    gateway: Gateway, folder: Path, document: str, *, examples: int, seed: int, is_short: bool
) -> Iterator[str]:
    """Send up to `examples` cases to each operation of an OpenAPI document; yield failed reports.

    Without `is_short`, also send all bounds and combinations of parameters, and test the operations
    for which no method is unsupported.
    """
    (folder / "schemathesis.toml").write_text(_OPTIONS)
    port, key, checks = gateway.settings.admin_port, _ADMIN_KEY, _CHECKS
    if document == "customers":
        # Values of operators' parameters may also be empty.
        port, key, checks = gateway.port, _KEY, (*_CHECKS, "negative_data_rejection")
    # Schemathesis itself would wait 10 s for the document, and a busy machine needs longer.
    described = get(f"http://127.0.0.1:{port}/openapi.json", timeout=300.0)
    (folder / "openapi.json").write_bytes(described.raise_for_status().content)
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "--config-file", "schemathesis.toml", "run"),
        *("openapi.json", "--url", f"http://127.0.0.1:{port}"),
        *("--header", f"Authorization: Bearer {key}"),
        *("--phases", "examples,fuzzing" if is_short else "examples,coverage,fuzzing"),
        *("--max-examples", str(examples), "--seed", str(seed), "--continue-on-failure"),
        *("--suppress-health-check", "all", "--request-timeout", "90", "--no-color"),
        *("--warnings", "off"),
    ]
    excluded = [f"--exclude-operation-id={name}" for name in (_EXCLUDED, *_ANY_METHOD)]
    runs = [[*excluded, "--checks", ",".join((*checks, "unsupported_method"))]]
    if document == "customers" and not is_short:
        included = [f"--include-operation-id={name}" for name in _ANY_METHOD]
        runs.append([*included, "--checks", ",".join(checks)])
    for run in runs:
        done = subprocess.run(
            [*command, *run], capture_output=True, text=True, check=False, cwd=folder, timeout=3600
        )
        if done.returncode:
            yield f"## {document}\n\n{done.stdout}{done.stderr}"


@contextlib.contextmanager
def documented_gateway(folder: Path) -> Iterator[Gateway]:
    """Run a gateway with both listeners; its backend gives a valid answer to every task."""
    with (
        stub_process(module=backend.__name__) as stub,
        running_gateway(
            folder / "gateway",
            one_backend(stub.url) | {"limits": WIDE_LIMITS},
            keys={"acme": _KEY},
            workers=1,
            batches=False,
            state_timeout=60.0,
            admin=True,
            admin_key=_ADMIN_KEY,
        ) as gateway,
    ):
        yield gateway


@click.command("fuzz-api")
@click.option("--examples", default=100, help="Number of cases for each operation.")
@seed
def fuzz_api_command(*, examples: int, seed: int | None) -> None:
    """Check the answers of both listeners against their OpenAPI documents."""
    found = list[str]()
    with seeded_run(seed) as (folder, chosen), documented_gateway(folder) as gateway:
        for document in DOCUMENTS:
            found += differences(
                gateway, folder, document, examples=examples, seed=chosen, is_short=False
            )
    end_with(found)
