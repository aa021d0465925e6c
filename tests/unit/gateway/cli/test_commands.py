"""The command line, as far as it goes without a running gateway."""

import socket
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from sluicegate.gateway.admin.operator_access import access_to, publish_access
from sluicegate.gateway.cli.root import main
from sluicegate.gateway.cli.serving import up
from testing.certificates import Authority
from tests.support.commands import CREATED, OK, REFUSED, listener, run

KEY = "kept-by-up-0123456789"
CONFIG = Path(__file__).parents[4] / "config"


def test_help_names_every_command_and_the_exit_codes() -> None:
    result = run("--help")

    for command in ("up", "gateway", "backend", "worker", "config", "keys", "usage", "models"):
        assert f"\n  {command} " in result.output
    assert "Exit codes: 0 done; 1 something failed" in result.output


def test_up_has_the_documented_options() -> None:
    result = run("up", "--help")

    for option in ("port", "admin-port", "workers", "regions", "data-dir", "config", "models"):
        assert f"--{option} " in result.output
    assert "SLUICEGATE_ADMIN_KEY" in result.output
    assert "SLUICEGATE_DEMO_KEY" in result.output


def test_up_starts_one_region_unless_it_is_asked_for_more() -> None:
    plain = up.make_context("up", [])
    asked = up.make_context("up", ["--regions", "eu,us"])

    assert plain.params["regions"] == ("eu",)
    assert asked.params["regions"] == ("eu", "us")


def test_a_valid_folder_is_said_to_be_valid() -> None:
    assert run("config", "check", str(CONFIG)).exit_code == 0

    shown = msgspec.json.decode(run("config", "check", str(CONFIG), "--json").stdout)
    assert shown["valid"] is True


def test_a_broken_folder_is_one_line_with_its_place_and_exit_code_3(tmp_path: Path) -> None:
    (tmp_path / "g.yaml").write_text("\nmodels: 3\n")

    result = run("config", "check", str(tmp_path))
    shown = msgspec.json.decode(run("config", "check", str(tmp_path), "--json").stdout)

    assert result.exit_code == 3
    line = f"Error: {tmp_path}/g.yaml:2: models: expected a mapping, got `int`\n"
    assert result.stderr == line
    assert (shown["valid"], shown["line"], shown["field"]) == (False, 2, "models")


def test_certificates_that_cannot_be_used_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    chain, key = authority.pair("one", "gateway")
    _, strange = authority.pair("other", "gateway")

    def check(**files: Path) -> Result:
        with monkeypatch.context() as own:
            for name, path in files.items():
                own.setenv(f"SLUICEGATE_UPSTREAM_{name.upper()}", str(path))
            return run("config", "check", str(CONFIG))

    missing = check(ca=tmp_path / "missing.pem")
    mismatched = check(certificate=chain, key=strange)

    assert check(ca=authority.ca, certificate=chain, key=key).exit_code == 0
    assert (missing.exit_code, mismatched.exit_code) == (3, 3)
    assert missing.stderr == (
        f"Error: {tmp_path}/missing.pem: the file cannot be read: No such file or directory\n"
    )
    assert f"{chain}: it does not belong to the key in `{strange}`" in mismatched.stderr
    assert "it holds no certificates in PEM" in check(ca=key).stderr
    assert "a key needs its certificate" in check(key=key).stderr


def test_a_cache_beyond_the_bound_on_memory_is_found_before_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLUICEGATE_MEMORY_LIMIT_BYTES", "300000000")

    result = run("config", "check", str(CONFIG))

    assert result.exit_code == 3
    assert "cache.memory_bytes: " in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--regions", "eu,eu"), 2, "--regions"),
        (("--regions", ""), 2, "--regions"),
        (("--workers", "0"), 2, "--workers"),
        (("--port", "70000"), 2, "--port"),
        (("--port", "9000", "--admin-port", "9000"), 2, "must differ"),
        (("--port", "9000", "--grpc-port", "9000"), 2, "must differ"),
        (("--config", "/nowhere"), 3, "is not a folder"),
        (("--demo-key", "short"), 3, "--demo-key"),
    ],
)
def test_up_refuses_what_cannot_work_before_it_starts_anything(
    tmp_path: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    places = ("--data-dir", str(tmp_path / "d"), "--config", str(CONFIG))

    result = run("up", *places, *arguments)

    assert result.exit_code == code, result.output
    assert said in result.output
    assert "Traceback" not in result.output


def test_up_on_a_busy_port_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = str(listener.getsockname()[1])

        result = run("up", "--port", port, "--config", str(CONFIG), "--data-dir", str(tmp_path))

    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"Error: port {port} on 127.0.0.1 is in use by another process; stop it")
    assert line.endswith("`--port`")


def test_a_gateway_on_a_busy_port_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        monkeypatch.setenv("SLUICEGATE_PORT", str(busy.getsockname()[1]))
        monkeypatch.setenv("SLUICEGATE_CONFIG", str(CONFIG))
        monkeypatch.setenv("SLUICEGATE_DATA_DIR", str(tmp_path))

        result = run("gateway", "--workers", "1")

    assert result.exit_code == 2
    assert result.stderr.endswith("choose another port with `SLUICEGATE_PORT`\n")


def test_without_a_running_instance_a_command_says_how_to_name_one(tmp_path: Path) -> None:
    (tmp_path / "admin-key").write_text("kept-by-up-0123456789\n")

    result = run("keys", "list", "--data-dir", str(tmp_path))

    assert result.exit_code == 2
    assert f"`{tmp_path}`" in result.output
    assert "--admin-key" in result.output


def test_a_listener_that_does_not_answer_is_exit_code_4(tmp_path: Path) -> None:
    (tmp_path / "admin-key").write_text(KEY)
    with publish_access(tmp_path, access_to("127.0.0.1", 1, KEY)):
        result = run("keys", "list", "--data-dir", str(tmp_path))

    assert result.exit_code == 4
    assert "http://127.0.0.1:1: cannot be reached" in result.output
    assert KEY not in result.output


@pytest.mark.parametrize(
    ("arguments", "environment", "reason"),
    [
        (["--data-dir", "X", "--admin-url", "http://127.0.0.1:2"], {}, "not sent to http"),
        (["--data-dir", "X", "--admin-key", "a-key-of-another-one"], {}, "the given key"),
        (
            ["--data-dir", "X"],
            {"ADMIN_URL": "http://127.0.0.1:2", "ADMIN_KEY": "a-key-of-another-one"},
            "not sent to http",
        ),
        (["--admin-url", "http://127.0.0.1:2"], {"DATA_DIR": "X"}, "not sent to http"),
        (["--admin-key", "a-key-of-another-one"], {"DATA_DIR": "X"}, "the given key"),
        (["--admin-url", "http://127.0.0.1:2", "--data-dir", "nowhere"], {}, "`--admin-key`"),
        (["--admin-key", KEY, "--data-dir", "nowhere"], {}, "`--admin-url`"),
    ],
)
def test_address_and_key_of_different_instances_are_refused(
    tmp_path: Path, arguments: list[str], environment: dict[str, str], reason: str
) -> None:
    """A key is sent to its own listener only; the message says what to give."""
    data = tmp_path / "X"
    data.mkdir()
    (data / "admin-key").write_text(KEY)
    given = [str(data) if argument == "X" else argument for argument in arguments]
    variables = {f"SLUICEGATE_{name}": value for name, value in environment.items()}
    variables = {name: str(data) if v == "X" else v for name, v in variables.items()}

    with publish_access(data, access_to("127.0.0.1", 1, KEY)):
        result = CliRunner().invoke(main, ["keys", "list", *given], env=variables)

    assert result.exit_code == 2, result.output
    assert reason in result.output


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "http://127.0.0.1:1"),
        (["--admin-key", KEY], "http://127.0.0.1:1"),
        (["--admin-url", "http://localhost:1"], "http://127.0.0.1:1"),
        (["--admin-url", "http://127.0.0.1:3", "--admin-key", "another-0123456"], ":3"),
    ],
)
def test_a_data_directory_gives_the_address_with_its_key(
    tmp_path: Path, arguments: list[str], expected: str
) -> None:
    """What is given of the same instance, or wholly on the line, is used."""
    (tmp_path / "admin-key").write_text(KEY)
    with publish_access(tmp_path, access_to("0.0.0.0", 1, KEY)):  # noqa: S104 - told, not bound
        result = run("keys", "list", "--data-dir", str(tmp_path), *arguments)

    assert result.exit_code == 4
    assert f"{expected}: cannot be reached" in result.output


def test_an_unknown_worker_is_refused() -> None:
    assert run("worker", "cook").exit_code == 2


@pytest.mark.parametrize(
    ("url", "key", "said"),
    [
        ("http://127.0.0.1:1", "secret-key-0123456789\n", "--admin-key"),
        ("http://127.0.0.1:1", " secret-key-0123456789", "--admin-key"),
        ("127.0.0.1:8081", KEY, "--admin-url"),
        ("http://h:99999", KEY, "--admin-url"),
        ("ftp://h:1", KEY, "--admin-url"),
        ("http://[::1", KEY, "--admin-url"),
    ],
)
def test_an_address_or_a_key_that_cannot_be_one_is_one_line_without_the_key(
    url: str, key: str, said: str
) -> None:
    variables = {"SLUICEGATE_ADMIN_URL": url, "SLUICEGATE_ADMIN_KEY": key}

    result = CliRunner().invoke(main, ["keys", "list"], env=variables)

    assert result.exit_code == 2, result.exception
    assert f"`{said}`" in result.output
    assert "secret" not in result.output


def test_names_are_parts_of_a_path_whatever_they_hold() -> None:
    """Such as no name has: the listener refuses it, and no other path is asked."""
    refusal = b"404 Not Found\r\nContent-Length: 2\r\n\r\n{}"

    with listener(refusal, refusal) as (there, asked):
        codes = [
            run("keys", "revoke", "key_1?x/ключ", *there).exit_code,
            run("regions", "drain", "eu", "../eu@10.0.0.1", *there).exit_code,
        ]

    assert codes == [4, 4]
    assert asked == [
        "/admin/keys/key_1%3Fx%2F%D0%BA%D0%BB%D1%8E%D1%87",
        "/admin/regions/eu/backends/..%2Feu%4010.0.0.1/drain",
    ]


def test_a_listener_of_the_version_before_is_understood() -> None:
    """Its answers lack what was added since."""
    taken = b"200 OK\r\nConnection: close\r\n\r\n"
    reload = b'{"generation":1,"digest":"x","changed":true,"live":true,"workers":{"w":"ok"}}'

    with listener(taken + reload, taken + b'{"live":true,"workers":{"w":"ok"}}') as (there, _):
        results = [run("config", "reload", *there), run("models", "reload", *there)]

    assert [result.exit_code for result in results] == [0, 0], [r.exception for r in results]
    assert all("w: ok" in result.output for result in results)


def test_a_tenant_whose_key_is_refused_is_said_to_be_there() -> None:
    refusal = b'{"status":400,"code":"invalid_request","detail":"no model `x`"}'

    with listener(CREATED + b"{}", REFUSED + refusal) as (there, _):
        result = run("keys", "create", "acme", "--new-tenant", "--model", "x", *there)

    assert result.exit_code == 4
    assert "no model `x`. The tenant `acme` is created" in result.output
    assert "`--new-tenant`" in result.output


def test_a_second_key_needs_no_new_tenant() -> None:
    conflict = b'{"status":409,"code":"conflict","detail":"the tenant `acme` exists already"}'

    with listener(REFUSED.replace(b"400 Bad Request", b"409 Conflict") + conflict) as (there, _):
        result = run("keys", "create", "acme", "--new-tenant", *there)

    assert result.exit_code == 4
    assert "`acme` exists already: leave out `--new-tenant`" in result.output


def test_a_budget_is_set_shown_and_removed() -> None:
    budget = {"amount": "250.00", "currency": "EUR", "month": "2026-11"}
    shown = msgspec.json.encode(budget | {"spent": "1.5", "remaining": "248.5"})
    made = msgspec.json.encode({"id": "acme", "budget": budget})

    with listener(OK + made, OK + shown, OK + b"{}") as (there, asked):
        results = [
            run("budgets", "set", "acme", "250.00", "--threshold", "50", "--refuse", *there),
            run("budgets", "show", "acme", *there),
            run("budgets", "remove", "acme", *there),
        ]

    assert [result.exit_code for result in results] == [0, 0, 0]
    assert "250.00 EUR" in results[0].output
    assert results[1].output == "2026-11: 1.5 of 250.00 spent, 248.5 left (EUR)\n"
    assert asked == ["/admin/tenants/acme/budget"] * 3


def test_a_key_whose_time_is_over_is_listed_as_expired() -> None:
    key = {"id": "k", "tenant": "acme", "name": "", "created": "2026-01-01T00:00:00Z"}
    ends = ("2026-01-02T00:00:00Z", "2999-01-01T00:00:00Z", None)
    keys = [{**key, "revoked": None, "expires": end} for end in ends]

    with listener(OK + msgspec.json.encode({"keys": keys})) as (there, _):
        listed = run("keys", "list", *there)

    heading, *lines = listed.output.splitlines()
    assert heading.split() == ["ID", "TENANT", "STATE", "CREATED", "NAME"]
    assert [line.split()[2] for line in lines] == ["expired", "active", "active"]


def test_a_lone_gateway_region_is_said_to_have_no_shares() -> None:
    with listener(OK + b'{"regions":[],"shares":[]}') as (there, _):
        result = run("regions", "shares", *there)

    assert result.exit_code == 0
    assert "SLUICEGATE_REGION" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("split", "mood", "1=ninety"), "`1=ninety`: write each revision once"),
        (("split", "mood", "1=90", "1=10"), "`1=10`: write each revision once"),
        (("split", "mood", "1=0"), "weight above 0"),
        (("split", "mood", "1=90", "--reset"), "`--reset`"),
        (("shadow", "mood"), "`--off`"),
        (("shadow", "mood", "2", "--off"), "`--off`"),
    ],
)
def test_wrong_shares_are_refused_before_anything_is_called(
    arguments: tuple[str, ...], message: str
) -> None:
    there = ("--admin-url", "http://127.0.0.1:1", "--admin-key", KEY)

    result = run("models", *arguments, *there)

    assert result.exit_code == 2
    assert message in result.stderr
