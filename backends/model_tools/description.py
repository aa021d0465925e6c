"""Describes a model to operators: its fields, and the file that each field was read from."""

from typing import Any

import msgspec

from sluicegate.backends.repository.model import Model
from sluicegate.wire.protocol import ModelInfo

_WIDTH = 22
_MOST_LABELS = 8
_SHOWN = ("outputs", "output", "function", "pooling", "truncate")
# These fields are shown only if a file sets them.
_RARE = (
    *("prompt", "prompts", "lowercase", "token_types", "split_special_tokens", "rerank_function"),
)


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a field of a model as it is shown, and where its value was read, if it was inferred."""

    name: str
    value: str
    source: str | None = None

    def line(self) -> str:
        """Return the line that shows the field."""
        value = self.value.replace("\n", "\\n")
        return f"{self.name:{_WIDTH}} {value}" + (f" ({self.source})" if self.source else "")


def describe_model(info: ModelInfo, model: Model) -> list[str]:
    """Return one line for each field of a model; an inferred field shows its source."""
    return [field.line() for field in model_fields(info, model)]


def model_fields(info: ModelInfo, model: Model) -> list[Field]:
    """Return the fields of a model that an operator may want to know."""
    fields: dict[str, str] = {
        "revision": f"{info.revision} in {info.profile}",
        "tasks": ", ".join(info.tasks) or "(none: only other models use it)",
        "max_tokens": str(info.max_tokens),
    }
    if info.labels is not None:
        fields["labels"] = _labels(info.labels)
    if info.dimensions is not None:
        fields["dimensions"] = str(info.dimensions)
    written: dict[str, Any] = msgspec.to_builtins(model.manifest)
    for field in (*_SHOWN, *(field for field in _RARE if field in model.inferred)):
        if written.get(field) is not None:
            fields[field] = _value(written[field])
    if model.shadow is not None:
        fields["shadow"] = (
            f"{model.shadow.share:g} % of the items are also sent to @{model.shadow.revision}"
        )
    if "pairs" in model.inferred:
        fields["pairs"] = "as the tokenizer joins them"
    return [
        Field(name=name, value=value, source=model.inferred.get(name))
        for name, value in fields.items()
    ]


def _value(written: Any) -> str:
    if isinstance(written, bool):
        return "yes" if written else "no"
    if isinstance(written, dict):
        return ", ".join(f"{kind}: {name}" for kind, name in written.items() if name is not None)
    return str(written)


def _labels(labels: list[str]) -> str:
    shown = ", ".join(labels[:_MOST_LABELS])
    rest = len(labels) - _MOST_LABELS
    return f"{shown} and {rest} more" if rest > 0 else shown
