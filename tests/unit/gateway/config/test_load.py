"""Reading a configuration document: what is refused, and what the refusal says."""

import subprocess
import sys
from pathlib import Path

import pytest

from sluicegate.gateway.config.document import Document
from sluicegate.gateway.config.load import digest, explain, load_folder, load_sources
from sluicegate.gateway.config.sources import DocumentSource
from sluicegate.gateway.errors import ConfigurationError
from tests.support.config_texts import load_text

BACKEND = '{id: eu-0, url: "http://127.0.0.1:9000"}'
REGION = f"regions: [{{name: eu, pools: [{{backends: [{BACKEND}]}}]}}]"


def refusal(text: str) -> str:
    """Return the one line that an operator reads about `text`."""
    with pytest.raises(ConfigurationError) as caught:
        load_text(text, name="g.yaml")
    return explain(caught.value)


def test_the_default_document_of_the_project_is_valid() -> None:
    folder = Path(__file__).parents[4] / "config"

    document = load_folder(folder)

    assert document.deadline.default == 10.0
    assert document.models["minilm"].cache_ttl == 604_800


def test_an_empty_text_is_the_default_document() -> None:
    assert load_text("") == Document()
    assert load_text("# only a remark\n") == Document()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("models:\n  a:\n    cache_ttl: soon\n", "g.yaml:3: models.a.cache_ttl: expected `float`"),
        ("models:\n  a:\n    cache_tll: 3\n", "g.yaml:3: models.a.cache_tll: unknown field"),
        ("models:\n  a:\n    cache_tll: 3\n", "did you mean `cache_ttl`?"),
        ("modles: {}\n", "g.yaml:1: modles: unknown field `modles`; did you mean `models`?"),
        ("models:\n  a: {}\n  a: {}\n", "g.yaml:3: models.a: the field is given twice"),
        ("models:\n  a: {scope: all}\n", "g.yaml:2: models.a.scope: invalid enum value 'all'"),
        ("models: [a]\n", "g.yaml:1: models: expected a mapping, got `list`"),
        ("models:\n", "g.yaml:1: models: expected a mapping, got nothing"),
        ("models:\n  a: {cache_ttl: -1}\n", "g.yaml:2: models.a.cache_ttl: must be at least 0"),
        ("models:\n  a: {cache_ttl: .nan}\n", "models.a.cache_ttl: must be at least 0, got nan"),
        ("models:\n  'a b': {}\n", "g.yaml:2: models.a b: `a b` must be 1 to 64 letters"),
        ("a: [1\n", "g.yaml:2: not valid YAML"),
        ("a: b: c\n", "g.yaml:1: not valid YAML"),
        ("a: 1\n---\nb: 2\n", "g.yaml:2: not valid YAML"),
        ("- a\n", "g.yaml:1: the top of the document must be a mapping"),
        ("deadline: {default: 90}\n", "deadline.default: must not be longer"),
        ("deadline: {default: true}\n", "deadline.default: expected `float`, got `bool`"),
        ("cache:\n  ttl_jitter: 2\n", "g.yaml:2: cache.ttl_jitter: must be from 0 to 1, got 2"),
        ("request:\n  max_items: 0\n", "g.yaml:2: request.max_items: must be at least 1, got 0"),
        ("routing: {attempts: 0}\n", "routing.attempts: must be at least 1"),
        ("regions:\n- pools: []\n", "g.yaml:2: regions[0]: the field `name` is missing"),
        ("regions:\n- name: eu\n- name: eu\n", "g.yaml:3: regions[1].name: `eu` is given twice"),
        ("x: !!python/object:os.system {}\n", "g.yaml:1: x: the tag"),
        ("models:\n  <<: {}\n", "merge keys (`<<`) are not supported"),
        ("models: &a\n  x: *a\n", "models.x: the value contains itself through an alias"),
        ("a: \x07\n", "g.yaml: not valid YAML"),
    ],
)
def test_a_broken_document_is_refused_with_line_and_field(text: str, expected: str) -> None:
    assert expected in refusal(text)


@pytest.mark.parametrize(
    ("backend", "expected"),
    [
        ("{id: a}", "backends[0].url: must be a URL"),
        ("{id: a, dns: backends}", "backends[0].dns: must be a name and a port"),
        ("{id: a, dns: 'backends:0'}", "backends[0].dns: must be a name and a port"),
        ("{id: a, dns: 'http://b:80'}", "backends[0].dns: must be a name and a port"),
        ("{id: a, dns: 'b:80', url: 'http://b:80'}", "`url` or a `dns`"),
        ("{id: a, url: 'https://b', tls: true}", "backends[0].tls: "),
        ("{id: a, url: 'http://b', server_name: b}", "server_name: needs TLS"),
        ("{id: a, dns: 'b:80', server_name: b}", "server_name: needs TLS"),
        ("{id: a, url: 'https://b', server_name: '*'}", "`*` must be a host name"),
    ],
)
def test_a_backend_that_cannot_be_placed_is_refused(backend: str, expected: str) -> None:
    assert expected in refusal(REGION.replace(BACKEND, backend))


@pytest.mark.parametrize(
    ("detector", "expected"),
    [
        ("kind: formats, formats: []", "detectors[0].formats: needs at least one format"),
        ("kind: words, words: []", "detectors[0].words: needs at least one word"),
        ("kind: words, words: [a, '']", "words[1]: has no visible character"),
        ('kind: words, words: ["\\u200b "]', "words[0]: has no visible character"),
        (f"kind: words, words: [{'a' * 257}]", "words[0]: has more than 256 characters"),
        (f"kind: words, words: [{'a, ' * 1001}]", "words: must have at most 1000 entries"),
        ("kind: pattern, pattern: '(a'", "pattern: is no regular expression of RE2"),
        ("kind: pattern, pattern: 'a*'", "pattern: matches an empty text"),
        (r"kind: pattern, pattern: '\pL{100}'", "instructions of RE2; at most 10,000"),
        ("kind: examples, model: n, threshold: 1, examples: {}", "must have 1 to 256 examples"),
        (
            "kind: examples, model: n, threshold: 1, examples: {a: []}",
            "must have 1 to 256 examples",
        ),
        (
            f"kind: examples, model: n, threshold: 1, examples: {{a: [{'x, ' * 257}]}}",
            "must have 1 to 256 examples",
        ),
        (
            f"kind: examples, model: n, threshold: 1, examples: {{a: [{'x' * 513}]}}",
            "examples.a[0]: has more than 512 characters",
        ),
    ],
)
def test_a_detector_that_finds_nothing_or_takes_too_long_is_refused(
    detector: str, expected: str
) -> None:
    text = f"guards: {{g: {{model: m, detectors: [{{name: d, {detector}}}]}}}}"

    assert expected in refusal(text)


_EXAMPLES = "{kind: examples, name: d, model: n, examples: {code: [x]}, threshold: 0.5}"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("rules: []", "r.rules: must have 1 to 256 rules"),
        ("rules: [{detector: e, target: t}]", "rules[0].detector: names no detector"),
        ("rules: [{detector: d, target: ''}]", "rules[0].target: needs a target"),
        ("rules: [{detector: d, label: cod, target: t}]", "`cod`; did you mean `code`?"),
        (
            (
                "detectors: [{kind: formats, name: d, formats: [email]}],"
                " rules: [{detector: d, label: MAIL, target: t}]"
            ),
            "`MAIL`; did you mean `EMAIL`?",
        ),
        ("rules: [{detector: d, target: t}], default: ''", "r.default: needs a target"),
        ('rules: [{detector: d, target: "a\\nb"}]', "rules[0].target: must be visible ASCII"),
        ("rules: [{detector: d, target: t}], default: größer", "r.default: must be visible"),
        ("rules: [{detector: d, target: t}], on_error: ' t'", "r.on_error: must be visible"),
        ('rules: [{detector: d, target: t}], shadow: "\\0"', "r.shadow: must be visible"),
        ("rules: [{detector: d, target: t}], detectors: []", "must have 1 to 64 detectors"),
        (f"rules: [{'{detector: d, target: t}, ' * 257}]", "must have 1 to 256 rules"),
    ],
)
def test_a_router_that_cannot_choose_is_refused(fields: str, expected: str) -> None:
    router = {"model": "m", "default": "t", "detectors": f"[{_EXAMPLES}]"}
    given = [f"{name}: {value}" for name, value in router.items() if f"{name}:" not in fields]

    assert expected in refusal(f"routers: {{r: {{{', '.join([*given, fields])}}}}}")


@pytest.mark.parametrize(
    "backend",
    [
        "{id: a, dns: 'backends.default.svc.cluster.local:8100'}",
        "{id: a, dns: 'backends:8100', tls: true, server_name: backends.example}",
        "{id: a, url: 'https://10.0.0.5:8100', server_name: backends.example}",
    ],
)
def test_a_backend_is_placed_by_url_or_by_name(backend: str) -> None:
    assert load_text(REGION.replace(BACKEND, backend)).regions[0].pools[0].backends[0].id == "a"


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("{name: per-minute, unit: requests, capacity: 1, window: 1}", "tenant[0].name"),
        ("{name: m, unit: calls, capacity: 1, window: 1}", "tenant[0].unit"),
        ("{name: m, unit: items, capacity: 0, window: 1}", "tenant[0].capacity"),
        ("{name: m, unit: items, capacity: 1, window: 0}", "tenant[0].window"),
        ("{name: m, unit: items, capacity: 1}", "tenant[0].window: must be more than 0"),
        ("{name: m, unit: items, capacity: 1, window: .inf}", "tenant[0].window"),
        ("{name: m, unit: items, capacity: 1, period: year}", "tenant[0].period: `year` must be"),
        ("{name: m, unit: items, capacity: 1, period: month, window: 1}", "tenant[0].window"),
        ("{name: m, unit: concurrent, capacity: 1, window: 1}", "tenant[0].unit: `concurrent`"),
        ("{name: m, unit: concurrent, capacity: 1, period: month}", "tenant[0].unit"),
    ],
)
def test_a_bad_limit_is_refused(rule: str, expected: str) -> None:
    text = f"limits:\n  tenant:\n    - {rule}\n"

    assert f"g.yaml:3: limits.{expected}" in refusal(text)


def test_a_limit_of_a_model_names_no_other() -> None:
    rule = "{name: a, unit: rows, capacity: 1, window: 1, model: n}"
    text = f"models:\n  m:\n    limits:\n      - {rule}\n"

    assert "g.yaml:4: models.m.limits[0].model: " in refusal(text)


@pytest.mark.parametrize(
    "rule",
    [
        "{name: m, unit: tokens, capacity: 1000, window: 60, model: minilm, shadow: true}",
        "{name: m, unit: items, capacity: 1000, period: month}",
        "{name: m, unit: tokens, capacity: 1000, period: day}",
        "{name: m, unit: concurrent, capacity: 8}",
    ],
)
def test_every_kind_of_limit_can_be_written(rule: str) -> None:
    assert load_text(f"limits:\n  tenant:\n    - {rule}\n").limits.tenant[0].name == "m"


@pytest.mark.parametrize(
    ("price", "expected"),
    [
        ("{since: 2026-02-30}", "prices[0].since: `2026-02-30` must be a date"),
        ("{since: yesterday}", "prices[0].since"),
        ("{currency: euro}", "prices[0].currency"),
        ("{hit: -1}", "prices[0].hit: must be from 0 to 1000000000000000, got -1"),
        ("{hit: 0.5}", "prices[0].hit: expected `int`"),
        (
            "{hit: 1000000000000001}",
            "prices[0].hit: must be from 0 to 1000000000000000, got 1000000000000001: a unit costs",
        ),
        ("{hit: 100000000000000000000000}", "prices[0].hit: must be from 0 to 1000000000000000"),
    ],
)
def test_a_bad_price_is_refused(price: str, expected: str) -> None:
    assert f"g.yaml:2: {expected}" in refusal(f"prices:\n- {price}\n")


def test_two_prices_of_a_model_from_one_day_on_are_refused() -> None:
    text = "prices:\n- {model: a, since: 2026-01-01}\n- {model: a, since: 2026-01-01}\n"

    assert refusal(text) == "g.yaml:3: prices[1].since: `a` has another price from 2026-01-01 on"


def test_a_date_needs_no_quotes() -> None:
    document = load_text("prices: [{since: 2026-03-01}]")

    assert document.prices[0].since == "2026-03-01"


@pytest.mark.parametrize("url", ["127.0.0.1:9000", "ftp://h", "http://", "http://h:99999", "http:"])
def test_a_backend_needs_a_url(url: str) -> None:
    text = REGION.replace("http://127.0.0.1:9000", url)

    assert "regions[0].pools[0].backends[0].url: must be a URL" in refusal(text)


def test_a_backend_id_is_unique_over_all_regions() -> None:
    other = f"{{name: us, pools: [{{backends: [{BACKEND}]}}]}}"
    text = REGION[:-1] + f",\n {other}]"

    said = refusal(text)
    assert said.startswith("g.yaml:2: regions[1].pools[0].backends[0].id: ")
    assert "`eu-0`" in said


def test_a_text_that_explodes_through_aliases_is_refused() -> None:
    levels = "".join(f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 9)}]\n" for n in range(9))

    assert "too large once its aliases are expanded" in refusal("a0: &a0 [x]\n" + levels)


@pytest.mark.parametrize(
    "text",
    [
        "models: " + "[" * 101 + "]" * 101,
        "models:\n" + "".join(" " * depth + "a:\n" for depth in range(1, 102)),
        "models:\n- &a0 [x]\n" + "".join(f"- &a{n} [*a{n - 1}]\n" for n in range(1, 900)),
    ],
)
def test_a_text_that_is_nested_too_deep_is_refused(text: str) -> None:
    assert "the document is nested more than 100 deep" in refusal(text)


def test_a_text_that_is_nested_without_end_does_not_end_the_process() -> None:
    """The composer of YAML recurses in C: it is tried in a process of its own."""
    script = """
from sluicegate.gateway.config.load import explain, load_sources
from sluicegate.gateway.config.sources import DocumentSource
from sluicegate.gateway.errors import ConfigurationError
try:
    load_sources([DocumentSource(name="g.yaml", text="models: " + "[" * 200_000)])
except ConfigurationError as error:
    print(explain(error))
"""

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout) == (
        0,
        "g.yaml:1: the document is nested more than 100 deep\n",
    )


def test_files_of_a_folder_make_one_document(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text("models: {a: {}}")
    (tmp_path / "a.yaml").write_text(REGION)
    (tmp_path / "c.txt").write_text("not: read")

    document = load_folder(tmp_path)

    assert list(document.models) == ["a"]
    assert document.regions[0].name == "eu"


def test_a_section_in_two_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("models: {a: {}}")
    (tmp_path / "b.yaml").write_text("\nmodels: {b: {}}")

    with pytest.raises(ConfigurationError) as caught:
        load_folder(tmp_path)

    assert (caught.value.file, caught.value.line) == (str(tmp_path / "b.yaml"), 2)
    assert str(tmp_path / "a.yaml") in caught.value.detail


def test_the_placement_takes_the_place_of_the_regions(tmp_path: Path) -> None:
    placement = tmp_path / "placement.yaml"
    placement.write_text(REGION.replace("eu", "here"))

    document = load_text(REGION, placement=placement)

    assert [region.name for region in document.regions] == ["here"]


def test_an_error_in_the_placement_names_its_file(tmp_path: Path) -> None:
    placement = tmp_path / "placement.yaml"
    placement.write_text("\nmodels: {}\n")

    with pytest.raises(ConfigurationError) as caught:
        load_text("", placement=placement)

    assert (caught.value.file, caught.value.line) == (str(placement), 2)
    assert caught.value.field == "models"


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"])
def test_a_folder_without_a_readable_document_is_refused(
    tmp_path: Path, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "a.yaml").write_bytes(content)

    with pytest.raises(ConfigurationError):
        load_folder(tmp_path)


def test_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is not a folder"):
        load_folder(tmp_path / "nowhere")


def test_a_field_with_its_default_changes_no_digest() -> None:
    written = load_text("request: {max_items: 2048}\nmodels: {a: {cache_ttl: 5, enabled: true}}")

    assert written.request.max_items == load_text("{}").request.max_items
    assert digest(written) == digest(load_text("models: {a: {cache_ttl: 5}}"))
    assert digest(written) != digest(load_text("models: {a: {cache_ttl: 6}}"))


def test_the_digest_follows_the_meaning_and_not_the_writing() -> None:
    block = load_text("models:\n  b: {cache_ttl: 5}\n  a: {}\n")
    flow = load_sources((DocumentSource(name="x", text="models: {a: {}, b: {cache_ttl: 5.0}}"),))

    assert digest(block) == digest(flow)
    assert digest(block) != digest(load_text("models: {a: {}}"))
