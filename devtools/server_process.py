"""The process of a database server: not root, alone in its session, and gone with whoever started it."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from devtools.s3_servers import START_TIMEOUT, ServerStartError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Command = list[str | Path]
"""A program and its arguments."""

_STOP_TIMEOUT = 10.0
_LOG_TAIL_LINES = 40

# Run in the child in place of ``preexec_fn``, which is unsafe in a process with threads. The order matters:
# the other user may not be able to read Python's modules, and a change of user takes back the wish to be
# signalled when the parent ends.
_AS_USER = """
import os, sys
if sys.platform == "linux":
    import ctypes
parent, death_signal, uid, gid = map(int, sys.argv[1:5])
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, death_signal)
if os.getppid() != parent:
    os._exit(1)
os.umask(0o077)
os.execv(sys.argv[5], sys.argv[5:])
"""


class ServerProcess:
    """A server, which can be started more than once.

    :param name: what messages call it
    :param command: the program and its arguments
    :param scratch: the folder that holds its data and its log, from :func:`scratch_folder`
    :param death_signal: what it is sent when its parent is gone
    """

    def __init__(self, name: str, command: Command, scratch: Path, *, death_signal: signal.Signals) -> None:
        self.name = name
        self.command = command
        self.scratch = scratch
        self.death_signal = death_signal
        self.log = scratch / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process that runs now, if any."""
        return self._process.pid if self._process else None

    def start(self, attempt: Callable[[], object], not_yet: type[Exception]) -> None:
        """Start the server, and return when an attempt to use it succeeds.

        :param attempt: uses the server
        :param not_yet: what ``attempt`` raises while the server does not answer
        """
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                _as_server_user(self.command, self.death_signal),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.scratch,
                env=_environment(self.scratch),
                start_new_session=True,
            )
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            try:
                attempt()
            except not_yet as error:
                status = self._process.poll()
                if status is None and time.monotonic() < deadline:
                    time.sleep(0.02)
                    continue
                outcome = f"did not answer ({error})" if status is None else f"ended with status {status}"
                lines = self.log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
                raise ServerStartError(
                    "\n".join([f"{self.name} {outcome} while starting:", *lines])
                ) from error
            return

    def stop(self, *signals: signal.Signals) -> None:
        """Send one signal after the other until the server is gone, and SIGKILL last."""
        process, self._process = self._process, None
        if process is None:
            return
        for number in (*signals, signal.SIGKILL):
            process.send_signal(number)  # not to the group: what remains of the server ends in good order
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_TIMEOUT)
                return


@contextlib.contextmanager
def scratch_folder(name: str) -> Iterator[Path]:
    """Make a folder that the server's user owns, and remove it with all that is in it."""
    with tempfile.TemporaryDirectory(prefix=f"{name}-") as folder:
        os.chown(folder, *_server_user())
        yield Path(folder)


def run(command: Command, scratch: Path, **environment: str) -> None:
    """Run a tool of the server's to its end, as the server's user."""
    done = subprocess.run(
        _as_server_user(command, signal.SIGKILL),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=scratch,
        env={**_environment(scratch), **environment},
        start_new_session=True,
        check=False,
    )
    if done.returncode:
        output = done.stdout.decode(errors="replace")
        raise ServerStartError(f"{Path(command[0]).name} ended with status {done.returncode}:\n{output}")


def reachable(programs: Path, scratch: Path) -> Path:
    """Return a tree of programs that the server's user can read: this one, or a copy of it.

    Root's virtual environments often lie in a home that is closed to others.
    """
    if os.getuid() or all(folder.stat().st_mode & stat.S_IXOTH for folder in (programs, *programs.parents)):
        return programs
    copy = shutil.copytree(programs, scratch / programs.name, symlinks=True)
    for path in (copy, *copy.rglob("*")):
        os.chown(path, *_server_user(), follow_symlinks=False)
    return copy


def _server_user() -> tuple[int, int]:
    """Return the user and the group that servers run as: ours, unless we are root, whom they refuse."""
    if os.getuid():
        return os.getuid(), os.getgid()
    nobody = pwd.getpwnam("nobody")
    return nobody.pw_uid, nobody.pw_gid


def _as_server_user(command: Command, death_signal: signal.Signals) -> list[str]:
    numbers = (os.getpid(), death_signal.value, *_server_user())
    return [sys.executable, "-I", "-S", "-c", _AS_USER, *map(str, numbers), *map(str, command)]


def _environment(scratch: Path) -> dict[str, str]:
    # A server must not act on the settings of whoever runs the tests.
    foreign = ("PG", "MYSQL_", "MARIADB_", "LC_", "LD_")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {**inherited, "HOME": str(scratch), "TMPDIR": str(scratch), "LC_ALL": "C"}
