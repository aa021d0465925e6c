"""Runs work as bulk work, for which no interactive work waits."""

from msgspec.structs import replace

from gateway.dispatch.work import Settle, StartedWork, Work, WorkRunner


class BulkRunner:
    """Wraps a `WorkRunner`: its work is in the bulk lane, and is claimed for no other worker.

    Others compute what they need themselves, rather than wait for bulk work.
    """

    def __init__(self, runner: WorkRunner) -> None:
        self._runner = runner

    def start(
        self, work: Work, *, deadline: float, settle: Settle, traceparent: str = ""
    ) -> StartedWork:
        """Settle all of `work`."""
        items = tuple([replace(item, key=None) for item in work.items])
        bulk = replace(work, lane="bulk", items=items)
        return self._runner.start(bulk, deadline=deadline, settle=settle, traceparent=traceparent)
