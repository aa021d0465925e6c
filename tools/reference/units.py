"""Returns the units of numbers in the configuration."""

import re

SECONDS = "s"
_SHARE = "share, 0 to 1"
# The first pattern that matches the end of a name gives the unit.
_UNITS = (
    (r"_bytes", "bytes"),
    (r"prices\[\]\.(hit|computed|row|token)", "10^-9 of the currency"),
    (r"percent", "percent"),
    (r"moderation_threshold", "score, 0 to 1"),
    (r"_share|max_ejected|panic_threshold|ttl_jitter", _SHARE),
    (r"_(rows|tokens|items|lines|keys|values|connections|threads|runs)", "count"),
    (
        r"attempts|refreshes|eject_after|_per_backend|_per_address|_count|\.threads|_threads",
        "count",
    ),
    (r"_per_second", "count a second"),
    (r"_per_hour", "currency an hour"),
    (r"log_requests", _SHARE),
    (r"capacity", "units"),
    (r"weight", "relative"),
    (r"_port|\.port", "port"),
    (r"_fd", "file descriptor"),
    (r"device", "number"),
    (r"_(at_once|max_open|in_flight|files_max|_max)", "count"),
    (r"files_max|_multiple|_steps|threads|_kernels|_processes", "count"),
    (r"(_timeout|_interval|_ttl|_keep|_delay|_idle|_after|_for|_age|lease|window|drain)", SECONDS),
    (r"(keep_alive|slow_start|revalidate|if_error|deadline\.\w+|paced_\w+)", SECONDS),
)


def unit(name: str) -> str:
    """Return the unit of the number `name`.

    Raises:
        LookupError: no pattern matches.
    """
    lower = name.lower()
    for pattern, found in _UNITS:
        if re.search(f"(?:{pattern})$", lower):
            return found
    raise LookupError(
        f"the unit of `{name}` is unknown; add a pattern to `tools/reference/units.py`"
    )
