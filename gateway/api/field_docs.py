"""Extracts the docstrings below a struct's fields from its source.

Python keeps no docstrings of attributes. The source is searched by a regular expression, since
parsing it would cost each start of a process a quarter of a second; it is formatted, so indentation
is enough.
"""

import inspect
import re
import sys
from functools import cache

import msgspec

_CLASS = re.compile(r"^class (\w+)", re.MULTILINE)
# A field of a class, what it is set to over some lines, and a string below it.
_FIELD = re.compile(
    r'^    (\w+): .*\n(?:(?: {5}.*|    [)\]}].*)\n)*    """((?:[^"]|"(?!""))+)"""', re.MULTILINE
)


def field_descriptions(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Return the description of each field that has one, those of base classes included.

    `described_by` of a struct names another one, whose fields of the same names are described.
    """
    like = getattr(struct, "described_by", None)
    found = {} if like is None else field_descriptions(like)
    for part in reversed(struct.__mro__):
        if issubclass(part, msgspec.Struct) and part is not msgspec.Struct:
            found |= _module_fields(part.__module__).get(part.__qualname__, {})
    return found


@cache
def _module_fields(module: str) -> dict[str, dict[str, str]]:
    """Return the described fields of the classes at the top of `module`."""
    source = inspect.getsource(sys.modules[module])
    starts = list(_CLASS.finditer(source))
    ends = [start.start() for start in starts[1:]] + [len(source)]
    return {
        start.group(1): {
            name: inspect.cleandoc(text) for name, text in _FIELD.findall(source, start.end(), end)
        }
        for start, end in zip(starts, ends, strict=True)
    }
