"""Tests generated clients, and programs in the documentation, against the running product.

Every example of the customers' document is sent as it stands there.
"""

import importlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any  # Any: modules that exist only while this test runs

import httpx
import msgspec
import pytest

from sluicegate.gateway.settings import process_environment
from testing.system import ADMIN_KEY, System
from tests.docs.tables import page
from tests.support.documents import (
    Document,
    conforms,
    documents,
    operations,
    parameter_examples,
    resolved,
)

pytestmark = pytest.mark.e2e

# YAML is sent as it is; the generator knows JSON and bytes.
_OPTIONS = """\
post_hooks: []
http_timeout: 60
package_name_override: {name}
content_type_overrides:
  application/yaml: application/octet-stream
"""
_PATIENT = httpx.Timeout(60.0)
_OF_EVERY_SERVER = {"content-length", "content-type", "date", "x-content-type-options"}
TYPESCRIPT = Path(__file__).parents[2] / "clients" / "typescript"
PROGRAMS = re.findall(r"^```python\n(.*?)^```", page("docs/clients.md"), re.MULTILINE | re.DOTALL)
# Names of what no example can know.
UNKNOWN = ("after", "batch_id", "file_id", "input_file_id", "request_id")
Modules = Callable[[str], Any]


def generated(url: str, name: str, folder: Path) -> Modules:
    """Return a function that imports modules of a client made from the document at `url`."""
    options = folder / "options.yaml"
    options.write_text(_OPTIONS.format(name=name))
    command = [*(sys.executable, "-m", "openapi_python_client", "generate", "--meta", "none")]
    command += ["--fail-on-warning", "--overwrite", "--config", str(options)]
    command += ["--url", f"{url}/openapi.json", "--output-path", str(folder / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return lambda module: importlib.import_module(f"{name}.{module}")


def answerable(document: Document) -> list[tuple[str, str, dict[str, Any]]]:
    """Return the operations whose examples are JSON, and name nothing that must be made first."""
    return [
        (method, path, operation)
        for method, path, operation in operations(document)
        if not names_unknown(operation)
        and "multipart/form-data" not in operation.get("requestBody", {}).get("content", {})
    ]


def names_unknown(operation: dict[str, Any]) -> bool:
    """Tell whether the examples of an operation name what must be made first."""
    return any(f'"{name}"' in json.dumps(operation) for name in UNKNOWN)


def customer(made: Modules, system: System) -> Any:
    return made("client").AuthenticatedClient(
        base_url=system.url, token=system.key, timeout=_PATIENT
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that modules are imported from."""
    path = tmp_path_factory.mktemp("generated")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(path)
        yield path
    for name in [name for name in sys.modules if name.startswith("made_for_")]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def customers(system: System, folder: Path) -> Modules:
    """The client of customers."""
    return generated(system.url, "made_for_customers", folder)


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    """What is closed at the end."""
    with ExitStack() as stack:
        yield stack


def test_a_generated_client_reads_the_results_of_every_task(
    system: System, customers: Modules, opened: ExitStack
) -> None:
    models, client = customers("models"), opened.enter_context(customer(customers, system))

    def ask(task: str, **fields: Any) -> Any:
        body = getattr(models, "".join(map(str.title, task.split("_"))) + "Body")(**fields)
        return customers(f"api.inference.{task}").sync(client=client, body=body)

    labels = ask("classify", model="sentiment", input_=["a gorgeous, witty movie"], top_k=1)
    assert isinstance(labels, models.ClassifyAnswer)
    assert [found.label for found in labels.results[0].labels] == ["positive"]
    assert labels.usage.items == 1
    topics = ask("zero_shot", model="topics", input_="The striker scored.", labels=["sport", "tax"])
    assert topics.results[0].labels[0].label == "sport"
    prompt = models.ChooseItem(prompt="The striker scored.", choices=["tax", "sport"])
    assert ask("choose", model="topics", input_=prompt).results[0].choice == 1
    ranked = ask("rerank", model="minilm", query="the PIN", documents=["a PIN", "a tax"])
    assert [type(found) for found in ranked.results] == [models.RankedDocument] * 2
    (found,) = ask("entities", model="entities-demo", input_="Angela Merkel visited.").results
    assert all(isinstance(entity.start, int) for entity in found.entities)
    pair = models.AnswerItem(question="who?", context="a good film")
    (spans,) = ask("answer", model="answers", input_=pair).results
    assert spans.answers[0].answer in pair.context
    (labelled,) = ask("entities", model="gliner", input_="Ada", labels=["name"]).results
    assert all(entity.label == "name" for entity in labelled.entities)
    (vector,) = ask("embed", model="minilm", input_="a sentence", dimensions=8).results
    assert len(vector.embedding) == 8


def test_a_generated_client_reads_problems_and_items_that_failed(
    system: System, customers: Modules, opened: ExitStack
) -> None:
    models, classify = customers("models"), customers("api.inference.classify")
    client = opened.enter_context(customer(customers, system))

    unknown = classify.sync(client=client, body=models.ClassifyBody(model="x", input_="a"))
    each = models.ClassifyBodyOnErrorType0.CONTINUE
    half = models.ClassifyBody(model="sentiment", input_=["a", ""], on_error=each)
    answer = classify.sync(client=client, body=half)

    assert isinstance(unknown, models.Problem)
    assert unknown.code == models.ProblemCode.MODEL_NOT_FOUND
    assert isinstance(answer.results[1], models.FailedResult)
    assert answer.results[1].error.code == "empty_input"


def test_a_generated_client_manages_tenants_and_keys(
    system: System, folder: Path, opened: ExitStack
) -> None:
    made = generated(system.admin_url, "made_for_operators", folder)
    models = made("models")
    client = made("client").AuthenticatedClient(
        base_url=system.admin_url, token=ADMIN_KEY, timeout=_PATIENT
    )
    opened.enter_context(client)

    rule = models.Rule(name="m", unit=models.RuleUnit.REQUESTS, capacity=9, window=60.0)
    new = models.NewTenant(id="generated", limits=[rule])
    tenant = made("api.accounts.create_tenant").sync(client=client, body=new)
    key = made("api.accounts.create_key").sync(
        client=client, body=models.NewKey(tenant="generated")
    )
    usage = made("api.billing.get_usage").sync(client=client, tenant="generated")

    assert isinstance(tenant, models.Tenant)
    assert tenant.limits[0].capacity == 9
    assert isinstance(key, models.CreatedKey)
    assert key.key.startswith("sk-")
    assert isinstance(usage, models.UsagePage)


@pytest.mark.system
@pytest.mark.skipif(
    shutil.which("node") is None or not (TYPESCRIPT / "node_modules").is_dir(),
    reason="Node.js or its packages are missing: see `make check NAME=openapi`",
)
def test_a_generated_typescript_client_compiles_and_makes_a_round_trip(
    system: System, tmp_path: Path
) -> None:
    def node(program: str, *arguments: str) -> str:
        command = ["node", program, *arguments]
        environment = dict(process_environment())
        environment |= {"SLUICEGATE_URL": system.url, "SLUICEGATE_KEY": system.key}
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    for name in ("round_trip.ts", "tsconfig.json"):
        shutil.copy(TYPESCRIPT / name, tmp_path)
    (tmp_path / "node_modules").symlink_to(TYPESCRIPT / "node_modules")
    for name, url in (("customers", system.url), ("operators", system.admin_url)):
        document = tmp_path / f"{name}.json"
        document.write_bytes(httpx.get(f"{url}/openapi.json").content)
        node("node_modules/@hey-api/openapi-ts/bin/run.js", "-i", document.name, "-o", name)
    node("node_modules/typescript/bin/tsc")

    answers = msgspec.json.decode(node("out/round_trip.js"))

    assert {"sentiment", "minilm", "reviewer"} <= set(answers.pop("models"))
    assert answers.pop("max_tokens") > 0
    assert isinstance(answers.pop("entities"), int)
    assert answers == {
        "labels": ["positive", "empty_input"],
        "items": 2,
        "topic": "sport",
        "choice": 1,
        "best": 0,
        "dimensions": 8,
        "review": 1,
        "usage": answers["usage"],
        "ready": True,
        "problem": "model_not_found",
    }


def test_every_example_of_the_customers_document_is_answered(system: System) -> None:
    with system.client() as client:
        document = client.get("/openapi.json").json()
        for method, path, operation in answerable(document):
            given = parameter_examples(operation, "header")
            headers = {name: str(value) for name, value in given.items()}
            query = parameter_examples(operation, "query")
            place = parameter_examples(operation, "path")
            body = operation.get("requestBody", {"content": {"application/json": {}}})
            examples = body["content"]["application/json"].get(
                "examples", {"none": {"value": None}}
            )
            for example in examples.values():
                answer = client.request(
                    method,
                    path.format(**place),
                    json=example["value"],
                    headers=headers,
                    params=query,
                )

                assert answer.status_code == 200, (path, answer.text)
                told = resolved(document, operation["responses"]["200"])
                for kind, content in told["content"].items():
                    written = answer.json() if kind == "application/json" else answer.text
                    conforms(document, content["schema"], written)
                sent = {name.lower() for name in answer.headers} - _OF_EVERY_SERVER
                assert sent <= {name.lower() for name in told["headers"]}


def samples(language: str) -> list[str]:
    """Return the programs of the customers' document in one language, if they can be answered."""
    return [
        sample["source"]
        for _, _, operation in operations(documents()["customers"])
        if not names_unknown(operation)
        for sample in operation.get("x-codeSamples", ())
        if sample["lang"] == language
    ]


@pytest.fixture
def addressed(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment says where the gateway is, and has a key."""
    monkeypatch.setenv("SLUICEGATE_URL", system.url)
    monkeypatch.setenv("SLUICEGATE_KEY", system.key)


@pytest.mark.usefixtures("addressed")
def test_every_python_sample_of_the_document_runs(capsys: pytest.CaptureFixture[str]) -> None:
    for program in samples("python"):
        exec(program, {})  # noqa: S102 - a program of this project

        assert capsys.readouterr().out


@pytest.mark.system
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is missing")
@pytest.mark.usefixtures("addressed")
def test_every_curl_sample_of_the_document_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".curlrc").write_text("fail\n")  # else it ends with 0 whatever the status is
    monkeypatch.setenv("CURL_HOME", str(tmp_path))
    script = "set -e\n" + "".join(samples("shell"))

    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.system
@pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is missing")
@pytest.mark.usefixtures("addressed")
def test_every_javascript_sample_of_the_document_runs(tmp_path: Path) -> None:
    programs = samples("javascript")
    path = tmp_path / "samples.mjs"
    path.write_text("".join(f"{{\n{program}}}\n" for program in programs))

    node = shutil.which("node") or ""
    done = subprocess.run([node, path], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    answered = [line for line in done.stdout.splitlines() if line.startswith("200 ")]
    assert len(answered) == len(programs), done.stdout


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.usefixtures("addressed")
def test_every_program_of_the_page_on_clients_runs(program: str) -> None:
    exec(program, {})  # noqa: S102 - a program of this project
