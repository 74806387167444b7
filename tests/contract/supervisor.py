"""
The triggerer's supervisor in a process of its own, with a real metadata database.

In a triggerer the supervisor is the parent and the code under test runs in its child; here it is the other
way round. All else is Airflow's: the socket and its frames, the messages and who handles them, the Execution
API and the database.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

_READY = b"!"


class Supervisor:
    """The test's end of the wire."""

    def __init__(self, wire: socket.socket, database: Path) -> None:
        self._wire = wire
        self._database = database

    @contextlib.asynccontextmanager
    async def attached(self) -> AsyncIterator[None]:
        """Have the task SDK in this event loop talk to the supervisor."""
        import asyncio

        from airflow.jobs.triggerer_job_runner import TriggerCommsDecoder
        from airflow.sdk.execution_time import task_runner

        wire = self._wire.dup()
        reader, writer = await asyncio.open_connection(sock=wire)
        decoder = TriggerCommsDecoder(socket=wire, async_writer=writer, async_reader=reader)
        reader_task = None
        if hasattr(decoder, "start_reader"):  # Airflow 3.2
            await decoder.start_reader()
            reader_task = decoder._reader_task
        task_runner.SUPERVISOR_COMMS = decoder
        try:
            yield
        finally:
            del task_runner.SUPERVISOR_COMMS
            if reader_task is not None:
                reader_task.cancel()
                await asyncio.gather(reader_task, return_exceptions=True)
            writer.transport.abort()

    def execute(self, statement: str, *parameters: Any) -> list[Any]:
        """Execute a statement in the metadata database, past everybody."""
        with contextlib.closing(sqlite3.connect(self._database, timeout=30)) as database, database:
            return database.execute(statement, parameters).fetchall()


@contextlib.contextmanager
def supervisor(home: Path) -> Iterator[Supervisor]:
    """
    Start a supervisor with an empty metadata database.

    :param home: A scratch folder.
    """
    database = home / "airflow.db"
    ours, theirs = socket.socketpair()
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{database}",
        "AIRFLOW__CORE__FERNET_KEY": "",
        "AIRFLOW__WORKERS__EXECUTION_API_RETRIES": "1",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
    }
    with (home / "supervisor.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            env=environment,
            stdout=log,
            stderr=log,
            pass_fds=[theirs.fileno()],
        )
    theirs.close()
    with process, ours:
        try:
            assert ours.recv(1) == _READY, (home / "supervisor.log").read_text()[-4000:]
            yield Supervisor(ours, database)
        finally:
            process.kill()


def main(wire: socket.socket) -> None:
    """Serve until the other end hangs up."""
    import uuid

    import attrs
    import psutil
    import structlog

    import airflow.models
    from airflow import settings
    from airflow.jobs.job import Job
    from airflow.jobs.triggerer_job_runner import TriggerRunnerSupervisor
    from airflow.models.base import Base
    from airflow.sdk.execution_time.supervisor import length_prefixed_frame_reader

    airflow.models.import_all_models()
    get_engine = getattr(settings, "get_engine", None)  # Airflow 3.1
    Base.metadata.create_all(get_engine() if get_engine is not None else settings.engine)
    names = {field.name for field in attrs.fields(TriggerRunnerSupervisor)}
    served = TriggerRunnerSupervisor(
        **({"job": Job()} if "job" in names else {}),  # below Airflow 3.3
        id=uuid.uuid4(),
        pid=os.getpid(),
        stdin=wire,
        process=psutil.Process(),
        process_log=structlog.get_logger(),
        capacity=1,
    )
    receive, _ = length_prefixed_frame_reader(served.handle_requests(structlog.get_logger()), lambda _: None)
    wire.sendall(_READY)
    while receive(wire):
        pass


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
