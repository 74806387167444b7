"""When the tests are interrupted, nothing that they started is left: no process, and no container."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped, unused-ignore]
import pytest

from system_tests import containers, services
from system_tests.running import COMPONENTS

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
MARK = "SYSTEM_TEST_MARK"
"""An environment variable that is inherited by whatever the tests start."""

TEST = """
import signal
import time
from pathlib import Path

from system_tests.running import COMPONENTS, RunningAirflow

JOBS = "SELECT DISTINCT job_type FROM job WHERE state = 'running'"


def test_that_runs_until_it_is_interrupted(services, tmp_path):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    path = tmp_path / "system"
    with RunningAirflow(path, services.metadata, connections={}, environment={}, dags=()) as airflow:
        airflow.start(*COMPONENTS)
        airflow.wait_until("job of each component", lambda: len(airflow.metadata.rows(JOBS)) == 3, 240)
        Path(__file__).with_name("runs").touch()
        time.sleep(600)
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGINT, marks=pytest.mark.quick, id="SIGINT"),
        pytest.param(signal.SIGTERM, id="SIGTERM"),
    ],
)
def test_nothing_is_left_after_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    """All servers and all of Airflow run when Ctrl-C, or SIGTERM, ends the tests."""
    with _running_tests(tmp_path) as (tests, mark):
        _wait_for(tmp_path / "runs", tests)
        started = psutil.Process(tests.pid).children(recursive=True)
        in_containers = services.chosen()[0] == "docker"
        assert len(started) >= len(COMPONENTS) + (0 if in_containers else 5)
        assert not in_containers or len(containers.made_by(tests.pid)) == 5
        os.killpg(tests.pid, number)  # as a terminal, or `timeout`, does
        assert tests.wait(timeout=120) == pytest.ExitCode.INTERRUPTED
        _, left = psutil.wait_procs(started, timeout=10)
        assert not left
        assert not _marked(mark)
        assert not in_containers or not containers.made_by(tests.pid)


@contextlib.contextmanager
def _running_tests(path: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Run tests in a process of its own, and kill whatever is left in the end."""
    mark = secrets.token_hex(8)
    (path / "test_running.py").write_text(TEST)
    options = [
        "-p",
        "system_tests.conftest",
        f"--config-file={ROOT / 'pyproject.toml'}",
        f"--basetemp={path / 'tests'}",
    ]
    with (path / "log").open("wb") as log:
        tests = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, path / "test_running.py"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env={**os.environ, MARK: mark},
            start_new_session=True,
        )
    try:
        yield tests, mark
    finally:
        print((path / "log").read_text(errors="replace"))
        for process in _marked(mark):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        tests.wait()


def _wait_for(file: Path, tests: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 400
    while not file.exists():
        assert tests.poll() is None, "the tests ended"
        assert time.monotonic() < deadline, "the system does not run"
        time.sleep(0.25)


def _marked(mark: str) -> list[psutil.Process]:
    """Return the processes that have inherited a mark, but for those that write over their environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark:
                found.append(process)
    return found
