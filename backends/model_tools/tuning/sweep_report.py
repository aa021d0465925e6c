"""Formats the report of a sweep: tables and a plot."""

from backends.model_tools.tuning.plot import Chart, draw_page
from backends.model_tools.tuning.speed import Sweep


def describe_sweep(sweep: Sweep) -> list[str]:
    """Return the tables, a line each."""
    lines = ["threads  rows a batch  rows/s   p95 of a batch"]
    lines += [
        f"{p.threads:7}  {p.batch_size:12}  {p.rows_per_second:6.0f}  {1000 * p.p95:11.1f} ms"
        for p in sweep.batches
    ]
    lines += ["", "clients  rows/s   p95 of an answer"]
    lines += [
        f"{p.clients:7}  {p.rows_per_second:6.0f}  {1000 * p.p95:12.1f} ms" for p in sweep.clients
    ]
    best = sweep.best
    lines += ["", f"best: {best.batch_size} rows a batch, {best.threads} threads"]
    if not sweep.shares_batches:
        lines.append("its answers depend on the rows beside them: rows run alone")
    return lines


def draw_sweep(sweep: Sweep) -> str:
    """Return the plot: throughput and p95 against rows of a batch, and against clients."""
    sizes = sorted({point.batch_size for point in sweep.batches})
    by_threads = {
        f"{threads} threads": [p for p in sweep.batches if p.threads == threads]
        for threads in sorted({point.threads for point in sweep.batches})
    }
    rate = {name: [p.rows_per_second for p in points] for name, points in by_threads.items()}
    late = {name: [1000 * p.p95 for p in points] for name, points in by_threads.items()}
    counts = [point.clients for point in sweep.clients]
    client_rate = {"": [p.rows_per_second for p in sweep.clients]}
    client_late = {"": [1000 * p.p95 for p in sweep.clients]}
    return draw_page(
        [
            Chart(title="rows a second", across="rows of a batch", steps=sizes, series=rate),
            Chart(title="p95 of a batch, ms", across="rows of a batch", steps=sizes, series=late),
            Chart(title="rows a second", across="clients", steps=counts, series=client_rate),
            Chart(title="p95 of an answer, ms", across="clients", steps=counts, series=client_late),
        ]
    )
