"""Renders a chat template as `transformers` does, in a process with limits.

A template is a program of strangers, and the sandbox of Jinja limits neither loops nor memory. So
the command `python -I chat_template.py SECONDS BYTES` limits its own processor time and memory. It
reads a JSON object `{"source", "values"}`, and writes the text or, with exit status 1, an error.
"""

import json
import resource
import sys
from typing import Any

_MOST_CHARACTERS = 1_000_000


def render(source: str, values: dict[str, Any]) -> str:
    """Return the text of a template.

    Raises:
        Exception: the template is invalid, or fails in its own way.
    """
    # Imported here, because a backend without this tool need not have the package.
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415

    def fail(message: str) -> None:
        raise ValueError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = fail
    text = environment.from_string(source).render(values)
    if len(text) > _MOST_CHARACTERS:
        raise ValueError(f"its text has more than {_MOST_CHARACTERS} characters")
    return text


def main() -> None:
    """Render the template on standard input."""
    seconds, memory = map(int, sys.argv[1:])
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))  # at the first, SIGXCPU
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    asked = json.load(sys.stdin.buffer)
    try:
        text = render(asked["source"], asked["values"]).encode()
    except MemoryError:
        error = f"it needs more than {memory} bytes of memory"
    except Exception as raised:  # noqa: BLE001 - a template may raise anything
        error = str(raised)
    else:
        sys.stdout.buffer.write(text)
        return
    sys.stdout.buffer.write(error[:1000].encode(errors="replace"))
    sys.exit(1)


if __name__ == "__main__":
    main()
