"""A real Airflow in a scratch home: its components as guarded child processes, its database in SQLite."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import os
import secrets
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self, TypeVar

from devtools.airflow_metadata import AirflowMetadata
from devtools.guard import GuardedProcess
from devtools.s3_servers import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

Component = Literal["api-server", "dag-processor", "scheduler", "triggerer"]
_T = TypeVar("_T")

_POLL_INTERVAL = 0.25
_LOG_TAIL_LINES = 15
_LOG_LINE_WIDTH = 250


class AirflowHomeError(Exception):
    """The scratch Airflow did not do what was waited for; the message says what, with the logs' ends."""


class AirflowHome:
    """A scratch Airflow: a context manager that at its end stops whatever was started.

    ::

        with AirflowHome(path, dags_folder=dags, connections={"aws_default": json}) as airflow:
            airflow.start("dag-processor", "triggerer")
            airflow.wait_until("event", lambda: airflow.metadata.asset_events("orders"))
            airflow.kill("triggerer")

    :param path: an empty or missing directory, left in place with the logs and the database
    :param dags_folder: where the Dag files are
    :param connections: Airflow connections (URI or JSON) by connection id
    :param environment: of all components, besides our own; it wins over the settings made here
    :param python: the interpreter of the environment in which Airflow is installed
    :param metadata: an empty metadata database, or None for one in SQLite
    :ivar environment: of all components: that of a command beside them, too
    """

    def __init__(
        self,
        path: Path,
        *,
        dags_folder: Path,
        connections: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        python: str | Path = sys.executable,
        metadata: AirflowMetadata | None = None,
    ) -> None:
        self.path = path.resolve()
        self.metadata = metadata or AirflowMetadata(self.path / "airflow.db")
        self.url = f"http://127.0.0.1:{free_port()}"
        self.environment = {
            **_inherited_environment(),
            **_settings(self.path, self.url, dags_folder.resolve(), self.metadata),
            **{f"AIRFLOW_CONN_{name.upper()}": value for name, value in (connections or {}).items()},
            **(environment or {}),
        }
        self._python = python
        self._processes: dict[Component, GuardedProcess] = {}

    def __enter__(self) -> Self:
        self.path.mkdir(parents=True, exist_ok=True)
        if self.metadata.url.startswith("sqlite"):
            shutil.copyfile(_migrated_database(self._python, self.environment), self.metadata.path)
        else:
            _migrate(self._python, self.path, self.environment)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, *components: Component) -> None:
        """Start components, and return at once."""
        for component in components:
            if component in self._processes:
                raise AirflowHomeError(f"{component} runs already")
            self._processes[component] = GuardedProcess(
                _airflow(self._python, component),
                log=self.path / f"{component}.log",
                cwd=self.path,
                env=self.environment,
            )

    def stop(
        self, component: Component, number: signal.Signals = signal.SIGTERM, timeout: float = 60
    ) -> None:
        """Signal a component, and return when nothing of it is left.

        :param timeout: seconds after which it is killed
        :raises AirflowHomeError: it had to be killed
        """
        process = self._processes.pop(component)
        try:
            process.signal(number)
            if process.wait(timeout) is None:
                raise AirflowHomeError(f"{component} did not end by {number.name} within {timeout:.0f} s")
        finally:
            process.close()

    def kill(self, component: Component) -> None:
        """End a component and all its children at once, as a crash of their machine would."""
        self.stop(component, signal.SIGKILL)

    def restart(self, component: Component, number: signal.Signals = signal.SIGTERM) -> None:
        """End a component by a signal, and start it again."""
        self.stop(component, number)
        self.start(component)

    def close(self) -> None:
        """Kill everything that runs: a scratch Airflow has nothing to finish."""
        while self._processes:
            _, process = self._processes.popitem()
            process.close()

    def pause_dag(self, dag_id: str) -> None:
        """Pause a Dag; its watchers end when its file is next parsed, a few seconds later."""
        self.metadata.set_paused(dag_id, paused=True)

    def unpause_dag(self, dag_id: str) -> None:
        """Unpause a Dag; its watchers come back when its file is next parsed."""
        self.metadata.set_paused(dag_id, paused=False)

    def wait_until(self, what: str, answer: Callable[[], _T], timeout: float = 120) -> _T:
        """Ask again and again, and return the first answer that is true.

        :param what: what is waited for, for the error message
        :param timeout: seconds
        :raises AirflowHomeError: it did not come in time, a component ended, or a Dag file does not import
        """
        deadline = time.monotonic() + timeout
        while not (found := answer()):
            self.check()
            if time.monotonic() > deadline:
                raise AirflowHomeError(f"No {what} within {timeout:.0f} s.\n{self.log_tails()}")
            time.sleep(_POLL_INTERVAL)
        return found

    def check(self) -> None:
        """Raise if a component ended by itself or a Dag file does not import.

        :raises AirflowHomeError: with the ends of the logs, or the stack traces
        """
        for component, process in self._processes.items():
            if (status := process.poll()) is not None:
                raise AirflowHomeError(f"{component} ended with status {status}.\n{self.log_tails()}")
        if errors := self.metadata.import_errors():
            raise AirflowHomeError("\n".join(["A Dag file does not import:", *errors]))

    def command_line(self, *arguments: str) -> str:
        """Run a command of this package's, beside the running Airflow, and return what it printed."""
        command = [str(self._python), "-m", "airflow.providers.watermark", *arguments]
        done = subprocess.run(
            command, env=self.environment, cwd=self.path, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise AirflowHomeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    def log_tails(self) -> str:
        """Return the last lines of every component's log."""
        parts = []
        for log in sorted(self.path.glob("*.log")):
            lines = log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
            parts.append("\n".join([f"--- the end of {log}:", *(line[:_LOG_LINE_WIDTH] for line in lines)]))
        return "\n".join(parts)


def _airflow(python: str | Path, *arguments: str) -> list[str]:
    return [str(python), "-m", "airflow", *arguments]


def _airflow_version(python: str | Path) -> str:
    script = "import importlib.metadata; print(importlib.metadata.version('apache-airflow-core'))"
    return subprocess.run([python, "-c", script], check=True, capture_output=True, text=True).stdout.strip()


def _inherited_environment() -> dict[str, str]:
    """Return our environment, less what would lead into the developer's own Airflow or AWS."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "AWS_"))}
    return {**kept, "NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}


def _settings(home: Path, url: str, dags_folder: Path, metadata: AirflowMetadata) -> dict[str, str]:
    settings = {
        "API__BASE_URL": url,
        "API__HOST": "127.0.0.1",
        "API__PORT": url.rpartition(":")[2],
        "API__WORKERS": "1",
        # One for all components: each would make up its own.
        "API_AUTH__JWT_SECRET": secrets.token_hex(32),
        "CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "CORE__DAGS_FOLDER": str(dags_folder),
        "CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "CORE__EXECUTOR": "LocalExecutor",
        "CORE__FERNET_KEY": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        "CORE__LOAD_EXAMPLES": "False",
        "CORE__PARALLELISM": "4",
        "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3",
        "DAG_PROCESSOR__REFRESH_INTERVAL": "3",
        "DATABASE__SQL_ALCHEMY_CONN": metadata.url,
        "LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
        "LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
        "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
        # A new triggerer takes over from a killed one when the last heartbeat is older than this threshold.
        "TRIGGERER__JOB_HEARTBEAT_SEC": "2",
        "TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "10",
    }
    return {"AIRFLOW_HOME": str(home), **{f"AIRFLOW__{name}": value for name, value in settings.items()}}


def _migrated_database(python: str | Path, environment: Mapping[str, str]) -> Path:
    """Return an empty database with all tables, kept between runs: to make one takes 5 to 25 seconds.

    :raises AirflowHomeError: the migration failed; the message is what it printed
    """
    cache = Path(tempfile.gettempdir(), f"airflow-provider-watermark-{os.getuid()}")
    cache.mkdir(mode=0o700, exist_ok=True)
    template = cache / f"airflow-{_airflow_version(python)}.db"
    with _locked(cache / "lock"):
        if not template.exists():
            with tempfile.TemporaryDirectory(dir=cache) as work:
                database = AirflowMetadata(Path(work, "airflow.db"))
                overrides = {"AIRFLOW_HOME": work, "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database.url}
                _migrate(python, Path(work), {**environment, **overrides})
                with contextlib.closing(sqlite3.connect(database.path)) as connection:
                    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # all of it in the one file
                database.path.replace(template)
    return template


def _migrate(python: str | Path, home: Path, environment: Mapping[str, str]) -> None:
    log = home / "migrate.log"
    process = GuardedProcess(_airflow(python, "db", "migrate"), log=log, cwd=home, env=environment)
    try:
        status = process.wait()
    finally:
        process.close()
    if status:
        raise AirflowHomeError(f"airflow db migrate failed:\n{log.read_text(errors='replace')}")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
