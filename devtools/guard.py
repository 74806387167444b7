"""Child processes that leave nothing behind, whatever happens to them or to us.

Each command runs under a *guard*: a small process in a session of its own, so that Ctrl-C in a terminal
reaches only its owner, which then stops it in an orderly way. The guard adopts the processes that its
command abandons, passes on signals, and kills everything below it when the command ends, or when the pipe
to the owner breaks: also when the owner was ended by SIGKILL, and whatever sessions and process groups were
made below it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped, unused-ignore]

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class GuardedProcess:
    """A command and all that it starts.

    :param command: the program and its arguments
    :param log: the file to which its output is appended
    :param cwd: its working directory
    :param env: its whole environment
    """

    def __init__(self, command: Sequence[str], *, log: Path, cwd: Path, env: Mapping[str, str]) -> None:
        with log.open("ab") as output:
            self._guard = subprocess.Popen(
                [sys.executable, "-P", __file__, *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env=env,
                start_new_session=True,
            )

    def descendants(self) -> list[psutil.Process]:
        """Return the command's processes, as they are now."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return list(psutil.Process(self._guard.pid).children(recursive=True))
        return []

    def poll(self) -> int | None:
        """Return the exit status, or None while anything of the command runs."""
        return self._guard.poll()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the command; SIGKILL goes to all its descendants at once, as in a crash."""
        assert self._guard.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):
            os.write(self._guard.stdin.fileno(), bytes([number]))

    def wait(self, timeout: float | None = None) -> int | None:
        """Return the exit status, or None if something still runs after ``timeout`` seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._guard.wait(timeout)
        return None

    def close(self) -> None:
        """Kill whatever still runs, and return when it is gone."""
        assert self._guard.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._guard.stdin.close()
        self._guard.wait()


def guard(command: Sequence[str]) -> int:
    """Run a command; kill all that is left of it when it ends, or when standard input is closed.

    Each byte on standard input is the number of a signal to send.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    # There are no threads here, so preexec_fn is safe. It acts if the guard itself is killed.
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=_die_with_guard,  # noqa: PLW1509
    )
    while child.poll() is None:
        if select.select([0], [], [], 0.1)[0]:
            number = os.read(0, 1)
            if not number or number[0] == signal.SIGKILL:
                break
            child.send_signal(number[0])
    _kill_descendants()
    return child.wait()


def _kill_descendants() -> None:
    """Kill until nothing is left: who loses its parent becomes our child, and is found in the next round."""
    while processes := psutil.Process().children(recursive=True):
        for process in processes:  # parents first, so that nobody is left to notice a child's death
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.02)
        for process in processes:
            with contextlib.suppress(ChildProcessError):  # it is not ours yet, or was not to begin with
                os.waitpid(process.pid, os.WNOHANG)


def _die_with_guard() -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(guard(sys.argv[1:]))
