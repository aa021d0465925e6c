"""Judges the result of a partition and renders all results as a table."""

from loadtests.partitions.cases import ProcessPair
from loadtests.partitions.run import PartitionResult

HEADING = (
    "| parted | direction | for | requests | wrong | failed | until | slowest | unbilled"
    " | unlogged | most memory | most processor | well after |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|---|"
)
MOST_BYTES = 512 * 1024**2
MOST_CPU = 0.6
WELL_AFTER = 10.0
_MIB = 1024**2


def line(result: PartitionResult) -> str:
    """Return the result as a row of the table."""
    failed = str(result.failed)
    if result.codes:
        failed += f" ({', '.join(map(str, result.codes))})"
    hungry = max(result.memory, key=lambda name: result.memory[name])
    busy = max(result.cpu, key=lambda name: result.cpu[name])
    cells = (
        result.pair,
        result.direction.value,
        f"{result.parted:g} s",
        str(result.requests),
        str(result.wrong),
        failed,
        f"{result.failed_until:.1f} s" if result.failed else "",
        f"{result.slowest:.1f} s",
        str(result.unbilled),
        str(result.unlogged),
        f"{result.memory[hungry] / _MIB:.0f} MiB ({hungry})",
        f"{result.cpu[busy]:.2f} ({busy})",
        f"{result.well_after:.1f} s",
    )
    return f"| {' | '.join(cells)} |"


def problems(
    result: PartitionResult, *pairs: ProcessPair, well_after: float = WELL_AFTER
) -> list[str]:
    """Return the violations in a result."""
    until = result.parted + well_after if any(pair.may_fail for pair in pairs) else 0.0
    found = {
        f"{result.wrong} answers are wrong": result.wrong,
        f"{result.unanswered} requests had no answer": result.unanswered,
        f"{result.unbilled} answers are not billed once": result.unbilled,
        f"{result.unlogged} requests are not logged once": result.unlogged,
        f"a request failed {result.failed_until:.1f} s after the beginning": (
            result.failed and result.failed_until > until
        ),
        f"not well after {result.well_after:.1f} s: {result.waited_for}": (
            result.well_after > well_after
        ),
        f"ended: {', '.join(result.died)}": result.died,
    }
    found |= {
        f"{name} had {size / _MIB:.0f} MiB": size > MOST_BYTES
        for name, size in result.memory.items()
    }
    found |= {
        f"{name} kept {share:.2f} processors busy": share > MOST_CPU
        for name, share in result.cpu.items()
    }
    return [trouble for trouble, is_so in found.items() if is_so]
