"""Runs coroutines that may block in a thread with an event loop of its own."""

import asyncio
import ctypes
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any

_INTERRUPT_INTERVAL = 1.0


class EventLoopBlocked(BaseException):
    """Interrupts code that blocks the loop after its time is over."""


class EventLoopThread:
    """Runs coroutines in a thread with its own loop, started with the first."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        # Done when the loop has run an iteration since the probe was scheduled.
        self._probe: Future[Any] = Future()
        self._probe.set_result(None)

    def start(self, work: Coroutine[Any, Any, Any]) -> "Future[Any]":
        """Run `work` there; cancelling the future cancels it."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            # A daemon: code that never returns must not keep the process from ending.
            self._thread = threading.Thread(
                target=_run, args=(self._loop,), name=self._name, daemon=True
            )
            self._thread.start()
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def free(self, timeout: float) -> None:
        """Interrupt what holds the loop for `timeout` from now, if anything does.

        Python code is interrupted between two of its instructions; a call that blocks outside of
        Python (`time.sleep`) is when it returns.
        """
        if self._loop is None or not self._probe.done():
            return
        self._probe = self.start(asyncio.sleep(0))
        self._watch(timeout)

    def _watch(self, timeout: float) -> None:
        # No timer of the caller's loop: that may end before the code does.
        timer = threading.Timer(timeout, self._interrupt)
        timer.daemon = True
        timer.start()

    def _interrupt(self) -> None:
        """Interrupt, and again after a while: foreign code may catch what it likes."""
        if self._probe.done() or self._thread is None:
            return
        thread = ctypes.c_ulong(self._thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(EventLoopBlocked))
        self._watch(_INTERRUPT_INTERVAL)

    def close(self) -> None:
        """Stop the thread, if it can be stopped."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(_stop, loop)


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.call_soon(loop.stop)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    while True:
        try:
            loop.run_forever()
        except EventLoopBlocked:
            # It reached the loop itself: the code that held it had just returned.
            continue
        break
    loop.close()
