"""Airflow as its users run it: four processes, kept running, and Postgres for the metadata."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import shutil
import signal
import sys
import urllib.request
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import psutil  # type: ignore[import-untyped, unused-ignore]
import psycopg

from devtools.airflow_home import AirflowHome, AirflowHomeError, Component
from devtools.airflow_postgres import PostgresMetadata
from devtools.guard import GuardedProcess
from devtools.ledger import Interruption
from devtools.s3_servers import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from devtools.databases import Postgres

_T = TypeVar("_T")

COMPONENTS: tuple[Component, ...] = ("api-server", "scheduler", "dag-processor", "triggerer")

DAGS = Path(__file__).parent / "dags"
EXAMPLES = Path(__file__).parents[1] / "example_dags"

_COMPLAINT = re.compile(r"\[(?:error|warning|critical) *\] \[asset=(?P<asset>\S+) source=")

SETTINGS = {
    # What is changed in a Dag file takes effect when it is next parsed: soon, but one after the other, so
    # that something is left of two processors.
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "5",
    "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
    "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "2",
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "5",
}


class RunningAirflow(AirflowHome):
    """All components of an Airflow, kept running as systemd or Kubernetes would.

    :param path: an empty or missing directory
    :param database: an empty one, for the metadata
    :param connections: Airflow connections (JSON) by connection id
    :param environment: of all components, besides our own
    :param dags: the files that are there from the start; they may be changed in :attr:`dags_folder`
    :ivar restarts: how often each component ended by itself, and was started again
    :ivar ends: when that was noticed of the triggerer, whose watchers ended with it
    """

    metadata: PostgresMetadata

    def __init__(
        self,
        path: Path,
        database: Postgres,
        *,
        connections: Mapping[str, str],
        environment: Mapping[str, str],
        dags: tuple[Path, ...],
    ) -> None:
        self.dags_folder = path / "dags"
        self.dags_folder.mkdir(parents=True)
        for file in dags:
            shutil.copy(file, self.dags_folder)
        self.restarts: Counter[Component] = Counter()
        self.ends: list[Interruption] = []
        self._may_end = self._may_break = False
        super().__init__(
            path / "airflow",
            dags_folder=self.dags_folder,
            connections=connections,
            environment={**SETTINGS, **environment},
            metadata=PostgresMetadata(database),
        )

    def __exit__(self, *details: object) -> None:
        super().__exit__(*details)
        self.metadata.close()

    def errors_of_watchers(self, *, after: int = 0) -> dict[str, list[str]]:
        """Return the errors and warnings in the triggerer's log that name an asset, by asset.

        :param after: the size that the log had
        """
        with (self.path / "triggerer.log").open("rb") as file:
            file.seek(after)
            text = file.read().decode(errors="replace")
        found: dict[str, list[str]] = {}
        for line in text.splitlines():
            if match := _COMPLAINT.search(line):
                found.setdefault(match["asset"], []).append(line)
        return found

    def wait_for_heartbeat(self, component: Component) -> None:
        """Wait until the API server answers, and says that a component was alive after this call."""
        began = datetime.now(UTC)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

        def is_alive() -> bool:
            try:
                with opener.open(f"{self.url}/api/v2/monitor/health", timeout=10) as answer:
                    health = json.load(answer)
            except (OSError, http.client.HTTPException):
                return False
            if component == "api-server":
                return True
            name = component.replace("-", "_")
            heartbeat = health[name][f"latest_{name}_heartbeat"]
            return heartbeat is not None and datetime.fromisoformat(heartbeat) > began

        self.wait_until(f"heartbeat of the {component}", is_alive)

    def log_size(self) -> int:
        """Return the present size of the triggerer's log, in bytes."""
        return (self.path / "triggerer.log").stat().st_size

    def signal_all(self, component: Component, number: signal.Signals) -> None:
        """Signal a component and all its children, as it takes to freeze it and to let it go on."""
        for process in self._processes[component].descendants():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    @contextlib.contextmanager
    def another_triggerer(self) -> Iterator[None]:
        """Run a second triggerer beside the first."""
        process = GuardedProcess(
            [sys.executable, "-m", "airflow", "triggerer"],
            log=self.path / "second-triggerer.log",
            cwd=self.path,
            env={**self.environment, "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port())},
        )
        try:
            yield
        finally:
            process.signal(signal.SIGTERM)
            process.wait(30)
            process.close()

    @contextlib.contextmanager
    def components_may_end(self) -> Iterator[None]:
        """Start again, meanwhile, what ends by itself: it lost its database."""
        self._may_end = True
        try:
            yield
        finally:
            self._may_end = False

    @contextlib.contextmanager
    def files_may_break(self) -> Iterator[None]:
        """Bear Dag files, meanwhile, that do not import."""
        self._may_break = True
        try:
            yield
        finally:
            self._may_break = False

    def check(self) -> None:
        """Start again what ended, if it may; else raise.

        :raises AirflowHomeError: a component ended, or a Dag file does not import
        """
        for component, process in list(self._processes.items()):
            if (status := process.poll()) is None:
                continue
            if not self._may_end:
                raise AirflowHomeError(f"{component} ended with status {status}.\n{self.log_tails()}")
            self.stop(component)
            self.start(component)
            self.restarts[component] += 1
            if component == "triggerer":
                now = datetime.now(UTC)
                self.ends.append(Interruption("it ended by itself", now, now))
        if not (self._may_end or self._may_break) and (errors := self.metadata.import_errors()):
            raise AirflowHomeError("\n".join(["A Dag file does not import:", *errors]))

    def wait_until(self, what: str, answer: Callable[[], _T], timeout: float = 120) -> _T:
        """Ask again and again; a database that is away has no answer."""

        def asked() -> _T | None:
            try:
                return answer()
            except psycopg.OperationalError:
                if not self._may_end:
                    raise
                return None

        found = super().wait_until(what, asked, timeout)
        assert found is not None
        return found
