"""The commands of operators, and the difference of a folder."""

from pathlib import Path

import msgspec

from tests.support.commands import CREATED, OK, listener, run

KEY = "kept-by-up-0123456789"


def test_the_difference_of_a_folder_is_shown(tmp_path: Path) -> None:
    (tmp_path / "d.yaml").write_text("models: {m: {cache_ttl: 2}}")
    changes = [
        {"path": "models.m.cache_ttl", "from": 1.0, "to": 2.0},
        {"path": "models.n", "to": {"planned": True}},
        {"path": "regions[us]", "from": {"name": "us"}},
    ]
    counted = {"count": 3, "first": ["acme", "beta"]}
    difference = {
        "changes": changes,
        "omitted": 4,
        "models": {"added": ["n"], "removed": [], "changed": ["m"]},
        "limits": ["limits.tenant[minute].capacity"],
        "prices": ["m"],
        "tenants_by_limits": counted,
        "tenants_by_prices": None,
    }
    nothing = difference | {"changes": [], "omitted": 0}
    answers = [
        OK + msgspec.json.encode({"valid": True, "digest": "d", "difference": one})
        for one in (difference, nothing, difference)
    ]

    with listener(*answers) as (there, asked):
        found = run("config", "diff", str(tmp_path), *there)
        same = run("config", "diff", str(tmp_path), *there)
        as_json = run("config", "diff", str(tmp_path), "--json", *there)

    assert found.output.splitlines() == [
        "~ models.m.cache_ttl: 1.0 -> 2.0",
        '+ models.n: {"planned":true}',
        '- regions[us]: {"name":"us"}',
        "... and 4 more fields",
        "models: +n, ~m",
        "limits: limits.tenant[minute].capacity",
        "prices: m",
        "tenants whose limits change: 3 (acme, beta, and 1 more)",
        (
            "tenants with usage this month whose prices change:"
            " unknown, because the ledger cannot be reached"
        ),
    ]
    assert same.output == "nothing would change\n"
    assert msgspec.json.decode(as_json.output)["difference"] == difference
    assert asked == ["/admin/config?dry_run=true"] * 3


def test_the_difference_counts_sampled_verdicts_of_guards(tmp_path: Path) -> None:
    (tmp_path / "d.yaml").write_text("models: {m: {cache_ttl: 2}}")
    counted = {
        "decisions": 5,
        "since": 60.0,
        "unknown": 2,
        "changed": 1,
        "before": {"allow": 4, "block": 1},
        "after": {"allow": 5, "block": 0},
        "detectors": {"anger": {"before": 1, "after": 0}},
        "uncounted": ["keys"],
    }
    none = counted | {"decisions": 0, "since": None, "changed": 0, "unknown": 0, "uncounted": []}
    checked = {"difference": {"changes": [], "omitted": 0}}
    answers = [checked | {"guards": guards} for guards in ({"chat": counted}, {"chat": none}, None)]

    with listener(*(OK + msgspec.json.encode(one) for one in answers)) as (there, _):
        shown = [run("config", "diff", str(tmp_path), *there).output for _ in answers]

    assert shown[0].splitlines()[1:] == [
        "guard chat: 1 of 5 sampled verdicts since 1970-01-01 00:01 UTC would change",
        "  allow: 4 -> 5",
        "  block: 1 -> 0",
        "  found by anger: 1 -> 0",
        "  the verdicts about 2 more are unknown",
        "  not counted: keys: try the guard on texts",
    ]
    assert "guard chat: 0 of 0 sampled verdicts would change\n" in shown[1]
    assert "unknown, because the cache Redis is unreachable" in shown[2]


def test_the_difference_of_a_folder_that_is_not_valid_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "d.yaml").write_text("\nmodels: {m: {cache_ttl: x}}")

    result = run("config", "diff", str(tmp_path), "--admin-url", "http://h:1", "--admin-key", KEY)

    assert result.exit_code == 3
    assert "d.yaml:2" in result.output


def test_operators_are_created_listed_rotated_and_revoked() -> None:
    one: dict[str, object] = {
        "name": "alice",
        "roles": ["billing", "viewer"],
        "created": "2026-01-01T00:00:00Z",
    }
    one |= {"expires": None, "revoked": None}
    with_key = msgspec.json.encode(one | {"key": "op-1"})
    listed = OK + msgspec.json.encode({"operators": [one]})
    changed, who = OK + msgspec.json.encode(one), OK + msgspec.json.encode(one)

    with listener(CREATED + with_key, listed, changed, OK + with_key, OK + b"{}", who) as (
        there,
        asked,
    ):
        results = [
            run("operators", "create", "alice", "--role", "viewer", "--role", "billing", *there),
            run("operators", "list", *there),
            run("operators", "roles", "alice", "--role", "viewer", *there),
            run("operators", "rotate", "alice", *there),
            run("operators", "revoke", "alice", *there),
            run("operators", "whoami", *there),
        ]

    assert [result.stdout for result in results] == [
        "op-1\n",
        (
            "NAME   STATE   CREATED               ROLES\n"
            "alice  active  2026-01-01T00:00:00Z  billing,viewer\n"
        ),
        "alice has the roles billing, viewer\n",
        "op-1\n",
        "alice is revoked\n",
        "alice\tbilling,viewer\n",
    ]
    assert asked[2:4] == ["/admin/operators/alice/roles", "/admin/operators/alice/rotate"]


def test_an_operator_without_a_role_is_refused() -> None:
    result = run("operators", "create", "alice", "--role", "astronaut")

    assert result.exit_code == 2
    assert "'astronaut' is not one of" in result.output
