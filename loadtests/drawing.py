"""Makes matplotlib figures that look alike in all reports, and writes them as SVG."""

from pathlib import Path
from typing import Any  # matplotlib has its own types, but may not be installed


def new_figure(name: str, *, width: float, height: float) -> Any:
    """Return an empty figure.

    `name` makes the figure's ids differ from the ids of other figures on a page.

    The same values give the same bytes in every run.
    """
    import matplotlib as mpl  # noqa: PLC0415 - of the tools, and slow to import
    from matplotlib.figure import Figure  # noqa: PLC0415

    mpl.rcParams["svg.fonttype"] = "none"  # text stays text
    mpl.rcParams["svg.hashsalt"] = name
    return Figure(figsize=(width, height), layout="constrained")


def finish_axes(axes: Any, x: str, y: str) -> None:
    """Name the axes, and draw grid and legend."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend(fontsize="small")


def save_figure(figure: Any, path: Path) -> Path:
    """Write a figure as SVG; return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    return path
