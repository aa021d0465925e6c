"""Tests clients generated from the OpenAPI documents against the running product.

Every example of the customers' document is sent as it stands there.
"""

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any  # Any: modules that exist only while this test runs

import httpx
import pytest

from loadtests.harness.system import ADMIN_KEY, ONE_REGION, System
from tests.support.documents import conforms, operations, resolved

pytestmark = pytest.mark.e2e

# YAML is sent as it is; the generator knows JSON and bytes.
_OPTIONS = """\
post_hooks: []
package_name_override: {name}
content_type_overrides:
  application/yaml: application/octet-stream
"""
_PATIENT = httpx.Timeout(60.0)
_OF_EVERY_SERVER = {"content-length", "content-type", "date"}
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


@pytest.fixture(scope="module")
def system(demo_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    data = tmp_path_factory.mktemp("clients") / "data"
    with System(data, models=demo_models, arguments=ONE_REGION) as running:
        yield running


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
    (vector,) = ask("embed", model="minilm", input_="a sentence", dimensions=8).results
    assert len(vector.embedding) == 8


def test_a_generated_client_reads_problems_and_items_that_failed(
    system: System, customers: Modules, opened: ExitStack
) -> None:
    models, classify = customers("models"), customers("api.inference.classify")
    client = opened.enter_context(customer(customers, system))

    unknown = classify.sync(client=client, body=models.ClassifyBody(model="x", input_="a"))
    each = models.ClassifyBodyOnError.CONTINUE
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


def test_every_example_of_the_customers_document_is_answered(system: System) -> None:
    with system.client() as client:
        document = client.get("/openapi.json").json()
        for method, path, operation in operations(document):
            parameters = operation.get("parameters", [])
            headers = {
                one["name"]: str(one["example"]) for one in parameters if one["in"] == "header"
            }
            query = {one["name"]: one["example"] for one in parameters if one["in"] == "query"}
            place = {one["name"]: one["example"] for one in parameters if one["in"] == "path"}
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
                conforms(document, told["content"]["application/json"]["schema"], answer.json())
                sent = {name.lower() for name in answer.headers} - _OF_EVERY_SERVER
                assert sent <= {name.lower() for name in told["headers"]}
