"""
Do what the tutorial says, word by word: ``python -m tests.docs.tutorial [--install]``.

With ``--install`` the environment is made as the page says, with this package from a wheel that is built
before; else the present environment stands for it. Ports, and the file that the Dag writes, are changed, so
that it can run beside others.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from devtools.s3_servers import free_port
from tests.docs.pages import DOCS, ROOT, Block, blocks_of, write_files

PAGE = DOCS / "tutorial/first-event.md"
PATIENCE = 300.0
"""Seconds until something has to be printed; the page says a minute, of a machine with nothing else to do."""

EXPECTED = sorted(f"orders/{name}.csv" for name in ("monday", "tuesday", "wednesday", "thursday", "monday"))
"""What the Dag is to get in all: what the page says, and nothing twice but what was overwritten."""


class Tutorial:
    """
    A reader who follows the page.

    :param folder: The folder in which the reader begins.
    :param wheels: Where the package to install is; ``None``: it is installed already.
    """

    def __init__(self, folder: Path, wheels: Path | None = None) -> None:
        self._folder = folder / "watermark-tutorial"
        self._begin = folder
        self._wheels = wheels
        self._loaded = folder / "loaded.txt"
        self._terminals: dict[str, subprocess.Popen[bytes]] = {}
        self._commands: dict[str, str] = {}
        self._began = time.monotonic()
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        self._changed = {"4566": str(free_port()), "/tmp/watermark-tutorial.txt": str(self._loaded)}
        inherited = {
            k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "AWS_", "VIRTUAL_ENV"))
        }
        self._environment = {
            **inherited,
            "AIRFLOW__API__PORT": str(port),
            "AIRFLOW__API__BASE_URL": url,
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
            "NO_PROXY": "127.0.0.1,localhost",
            **({"PIP_FIND_LINKS": str(wheels)} if wheels else {}),
        }

    def follow(self) -> None:
        """Do it all; what does not come as the page says raises."""
        for block in blocks_of(PAGE):
            if block.word == "run by":
                self._do(block)

    def _do(self, block: Block) -> None:
        how = block.note.partition(", ")[2]
        print(f"--- {time.monotonic() - self._began:.0f} s: {block.name} {how}", flush=True)
        if "unless" in how:
            self._install(block.code)
        elif "terminal" in how:
            self._open(how, self._change(block.code))
        elif "after a stop" in how:
            time.sleep(12)  # the page says ten
            self._close("in a third terminal")
            self._run(block.code)
        elif match := re.search(r"until it prints (\S+)", how):
            if "after a start" in how:
                self._open("in a third terminal", self._commands["in a third terminal"])
            self._wait(block.code, match[1])
        else:
            print(self._run(block.code), flush=True)

    def _install(self, code: str) -> None:
        if self._wheels is not None:
            self._shell(code, self._begin)
        else:
            self._folder.mkdir()
            (self._folder / "venv").symlink_to(sys.prefix)
        for file in write_files(PAGE, self._folder):
            file.write_text(self._change(file.read_text()))

    def _change(self, text: str) -> str:
        for old, new in self._changed.items():
            text = text.replace(old, new)
        return text

    def _run(self, code: str) -> str:
        return self._shell(f". ./env.sh\n{self._change(code)}", self._folder)

    def _shell(self, code: str, folder: Path) -> str:
        run = subprocess.run(
            ["/bin/sh", "-ec", code],
            cwd=folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if run.returncode:
            msg = f"{code}\nended with {run.returncode}:\n{run.stdout}\n{run.stderr}"
            raise AssertionError(msg)
        return run.stdout + run.stderr

    def _wait(self, code: str, text: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not self._loaded.exists() or text not in (printed := self._run(code)):
            for how, terminal in self._terminals.items():
                assert terminal.poll() is None, (
                    f"what runs {how} has ended: {self._log(how).read_text()[-3000:]}"
                )
            assert time.monotonic() < deadline, (
                f"{text} was not printed: {self._log(how).read_text()[-3000:]}"
            )
            time.sleep(2)
        print(printed, flush=True)

    def _log(self, how: str) -> Path:
        return self._begin / f"{how.replace(' ', '-')}.log"

    def _open(self, how: str, code: str) -> None:
        """Run something in another terminal, where it stays in the foreground."""
        self._commands[how] = code
        with self._log(how).open("ab") as log:
            self._terminals[how] = subprocess.Popen(
                ["/bin/sh", "-ec", code],
                cwd=self._folder,
                env=self._environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        time.sleep(5)

    def _close(self, how: str, patience: float = 60.0) -> None:
        """Press Ctrl-C in a terminal; what has not ended after so many seconds is killed."""
        terminal = self._terminals.pop(how)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(terminal.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            terminal.wait(patience)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(terminal.pid, signal.SIGKILL)
        terminal.wait()

    def loaded(self) -> list[str]:
        """Give what the Dag has got, in order."""
        return [line.split()[0] for line in self._loaded.read_text().splitlines()]

    def close(self) -> None:
        """Close all terminals."""
        for how in list(self._terminals):
            self._close(how, patience=5)


@contextlib.contextmanager
def reader(folder: Path, wheels: Path | None = None) -> Iterator[Tutorial]:
    """Give a reader, and close all terminals at the end."""
    tutorial = Tutorial(folder, wheels)
    try:
        yield tutorial
    finally:
        tutorial.close()


def main() -> None:
    """Follow the page in a scratch folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--install", action="store_true", help="install as the page says, from a wheel")
    install = parser.parse_args().install
    with tempfile.TemporaryDirectory(prefix="tutorial-") as folder:
        wheels = Path(folder) / "wheels" if install else None
        if wheels is not None:
            command = [
                sys.executable,
                "-m",
                "build",
                "--no-isolation",
                "--wheel",
                "--outdir",
                str(wheels),
                str(ROOT),
            ]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        began = time.monotonic()
        with reader(Path(folder), wheels) as tutorial:
            tutorial.follow()
            assert sorted(tutorial.loaded()) == EXPECTED, tutorial.loaded()
        print(f"\nAs the page says, in {time.monotonic() - began:.0f} s:")
        print("\n".join(tutorial.loaded()))


if __name__ == "__main__":
    main()
