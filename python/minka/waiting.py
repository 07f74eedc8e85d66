"""Waiting for what minka does in threads of its own, so that Ctrl-C is heard."""

import sys
import time
from collections.abc import Callable
from typing import Any

_MOMENT_SECONDS = 0.1

# Jobs that nobody waits for any more, and that may still be at work.
_interrupted: list = []


class Progress:
    """One line on standard error that says what goes on, where that is a terminal or a notebook."""

    def __init__(self, what: str, shown: bool):
        stream = sys.stderr
        in_notebook = type(stream).__module__.startswith("ipykernel")
        self._what = what
        self._shown = shown and stream is not None and (in_notebook or stream.isatty())
        self._begin = time.monotonic()
        self._length = 0

    def show(self, phase: str) -> None:
        if self._shown:
            self._write(f"minka: {self._what}: {phase} ({time.monotonic() - self._begin:.0f} s)")

    def clear(self) -> None:
        if self._length:
            self._write("")

    def _write(self, line: str) -> None:
        line = line[:120]
        sys.stderr.write("\r" + line.ljust(self._length) + ("" if line else "\r"))
        sys.stderr.flush()
        self._length = len(line)


def wait_for(job: Any, show: Callable[[str], None] = lambda phase: None) -> Any:
    """The job's result. Where the wait is interrupted the job is asked to stop; await_interrupted waits for its end."""
    try:
        while not job.wait(_MOMENT_SECONDS):
            show(job.phase)
    except BaseException:
        job.stop()
        _interrupted[:] = [other for other in _interrupted if not other.wait(0)]
        _interrupted.append(job)
        raise
    return job.result()


def await_interrupted(at_exit: bool = False) -> None:
    """Until nothing that was interrupted is at work any more; but what only waits for a step is left to the end of the process."""
    while _interrupted:
        while not (at_exit and _interrupted[-1].can_be_left) and not _interrupted[-1].wait(_MOMENT_SECONDS):
            pass
        _interrupted.pop()
