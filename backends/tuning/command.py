"""`models tune`: measures a model on this machine, or makes a faster variant of it."""

from collections.abc import Callable
from pathlib import Path

from backends.admission.gate import Bounds
from backends.errors import StartProblem
from backends.repository.catalogue import read_catalogue
from backends.settings import BackendSettings, quiet_libraries
from backends.tuning.texts import read_golden

Say = Callable[[str], None]


def tune_precision(
    settings: BackendSettings,
    name: str,
    *,
    calibrate: Path,
    against: Path,
    bounds: Bounds,
    least_speedup: float,
    dry_run: bool,
    say: Say,
) -> bool:
    """Make and judge an int8 variant; publish it when it is accepted, and say so.

    Raises:
        StartProblem: there is nothing to make it of.
    """
    quiet_libraries()
    try:
        # Only making a graph needs `onnx`; serving one does not.
        from backends.tuning.precision import Precision, describe  # noqa: PLC0415
        from backends.tuning.publish import publish  # noqa: PLC0415
        from backends.tuning.subject import find_subject  # noqa: PLC0415
    except ImportError as error:
        raise StartProblem(
            f"`--precision` needs the package `{error.name}`: install it with "
            f"`pip install {error.name}`"
        ) from None
    subject = find_subject(read_catalogue(settings.models), name, lanes=settings.lanes)
    texts, golden = read_golden(calibrate), read_golden(against)
    work = Precision(subject, bounds=bounds, least_speedup=least_speedup, say=say)
    graph, report = work.make(texts, golden)
    for line in describe(report):
        say(line)
    if report.reasons:
        say(f"Refused: {'; '.join(report.reasons)}")
        return False
    say("Accepted")
    if not dry_run:
        for folder in publish(settings.models, subject, graph, report):
            say(f"Wrote {folder}")
    return True
