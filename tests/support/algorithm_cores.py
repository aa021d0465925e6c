"""Gives the processes of algorithms a core of their own, as far as they are told."""

from time import monotonic

import pytest

from sluicegate.backends.algorithms.host_process import HostProcess


def give_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count no wait within a step, and all time outside of steps, whatever else this machine does.

    So the step of an item that computes for ever is found as on a machine that has nothing to do.
    """
    monkeypatch.setattr(HostProcess, "known_delay", property(lambda _: monotonic()))
    monkeypatch.setattr(HostProcess, "delay", _waited)


def _waited(process: HostProcess) -> float:
    step = process.marks.step()
    return monotonic() if step is None else step.began / 1e9
