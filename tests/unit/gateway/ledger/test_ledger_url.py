"""URLs of a ledger of several servers are read as libpq reads them, and bad ones are refused."""

import pytest
import sqlalchemy

from sluicegate.gateway.errors import ConfigurationError
from sluicegate.gateway.ledger.postgresql import parse_url

_SEVERAL = {"host": "a,b", "port": "5432,5433"}


def connecting(url: str) -> dict[str, object]:
    """Return what the driver is given."""
    parsed = parse_url(url)
    _, options = sqlalchemy.create_engine(parsed).dialect.create_connect_args(parsed)
    return {name: value for name, value in options.items() if name != "context"}


@pytest.mark.parametrize(
    ("url", "own"),
    [
        ("postgresql+psycopg://u:p@a:5432,b:5433/db", {}),
        ("postgresql+psycopg://u:p@a,b:5433/db", {}),
        ("postgresql+psycopg://u:p@/db?host=a:5432&host=b:5433", {}),
        ("postgresql+psycopg://u:p@/db?host=a,b&port=5432,5433", {}),
        ("postgresql+psycopg://u:p%40%2C@a,b:5433/db?options=-cx%3D1", {"options": "-cx=1"}),
        ("postgresql+psycopg://u:p?@a,b:5433/db", {}),
        ("postgresql+psycopg://u:p@[::1]:1,b:2/db", {"host": "::1,b", "port": "1,2"}),
        (
            "postgresql+psycopg://u:p@a,b:5433/db?target_session_attrs=any",
            {"target_session_attrs": "any"},
        ),
    ],
    ids=["libpq", "default port", "sqlalchemy", "lists", "password", "?", "IPv6", "any server"],
)
def test_of_several_servers_the_one_that_takes_writes_is_used(
    url: str, own: dict[str, object]
) -> None:
    options = connecting(url)

    password = options.pop("password")
    assert password in {"p", "p?", "p@,"}
    primary = {"target_session_attrs": "read-write"}
    assert options == {"user": "u", "dbname": "db", **_SEVERAL, **primary, **own}


def test_the_url_of_one_server_stays_as_it_is() -> None:
    for url in (
        "postgresql+psycopg://u@a:5433/db?host=/run",
        "postgresql+psycopg://u:a,b/c@a:5433/db",
        "postgresql+psycopg://u:1,2/c@a:5433/db",
        "sqlite:////data/a,b.db",
    ):
        assert str(parse_url(url)) == str(sqlalchemy.make_url(url))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://u:sesame@a:5432,/db",
        "postgresql+psycopg://u:sesame@a:x,b/db",
        "postgresql+psycopg://u:sesame#1@a:x/db",
        "sesame",
    ],
    ids=["no host", "a port of several", "a port", "no URL"],
)
def test_what_is_no_url_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ConfigurationError, match="SLUICEGATE_LEDGER_URL") as refused:
        parse_url(url)

    assert "sesame" not in str(refused.value)
    assert refused.value.__cause__ is None
