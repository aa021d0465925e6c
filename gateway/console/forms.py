"""Converts the fields of the console's forms to values for the ledger. Does no I/O."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from sluicegate.gateway.errors import InvalidRequest
from sluicegate.gateway.ledger.types import Budget
from sluicegate.gateway.types import Rule

RULE_FIELDS = ("name", "unit", "capacity", "window", "period", "model", "shadow")
MOST_RULES = 20
_MOST_DIGITS = 18

Fields = Mapping[str, Sequence[str]]
"""The values of each field, in the order of the form."""


def one(fields: Fields, name: str) -> str:
    """Return the first value of a field, or an empty string if the field is missing."""
    values = fields.get(name, ())
    return values[0].strip() if values else ""


def rules_of(fields: Fields) -> tuple[Rule, ...]:
    """Return the limits in a form, one for each row. Rows without a name are skipped.

    Raises:
        InvalidRequest: a number is invalid, or a row is incomplete.
    """
    columns = [list(fields.get(f"rule_{name}", ())) for name in RULE_FIELDS]
    if len({len(column) for column in columns}) > 1:
        raise InvalidRequest("a row of the limits is incomplete: reload the page")
    rows = [dict(zip(RULE_FIELDS, row, strict=True)) for row in zip(*columns, strict=True)]
    return tuple(_rule(row) for row in rows[:MOST_RULES] if row["name"].strip())


def budget_of(fields: Fields) -> Budget:
    """Return the budget in a form.

    Raises:
        InvalidRequest: a threshold is not a number.
    """
    texts = one(fields, "thresholds").replace(",", " ").split()
    return Budget(
        amount=one(fields, "amount"),
        currency=one(fields, "currency"),
        thresholds=tuple(_number(text, "thresholds") for text in texts),
        refuse=bool(one(fields, "refuse")),
    )


def words_of(fields: Fields, name: str) -> tuple[str, ...] | None:
    """Return the words in a field, or `None` if there are none. Spaces or commas separate words."""
    words = one(fields, name).replace(",", " ").split()
    return tuple(words) or None


def number_of(text: str, name: str) -> int:
    """Parse a number from a URL or a form.

    Raises:
        InvalidRequest: `text` is not a number, or has too many digits.
    """
    if not text.isdecimal() or len(text) > _MOST_DIGITS:
        raise InvalidRequest(f"`{name}` must be a number of at most {_MOST_DIGITS} digits")
    return int(text)


def moment_of(fields: Fields, name: str) -> datetime | None:
    """Return the date or time in a field, or `None` if the field is empty.

    A time without a time zone is in UTC.

    Raises:
        InvalidRequest: the value is not a date or a time.
    """
    text = one(fields, name)
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidRequest(f"`{name}`: `{text[:40]}` is not a date or a time") from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _rule(row: Mapping[str, str]) -> Rule:
    where = f"limits, `{row['name'].strip()[:40]}`"
    window = row["window"].strip()
    return Rule(
        name=row["name"].strip(),
        unit=row["unit"],
        capacity=_number(row["capacity"], f"{where}, capacity"),
        window=_seconds(window, f"{where}, window") if window else 0.0,
        period=row["period"],
        model=row["model"].strip(),
        shadow=row["shadow"] == "yes",
    )


def _number(text: str, where: str) -> int:
    try:
        return int(text.strip())
    except ValueError as error:
        raise InvalidRequest(f"{where}: `{text.strip()[:40]}` is not a whole number") from error


def _seconds(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise InvalidRequest(f"{where}: `{text[:40]}` is not a number of seconds") from error
