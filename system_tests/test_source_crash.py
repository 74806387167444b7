"""Source databases crash, or are restarted, while changes arrive."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Literal

import pytest

from devtools.row_ledger import Version

if TYPE_CHECKING:
    from collections.abc import Iterator

    from system_tests.system import System

MODES: tuple[Literal["immediate", "fast"], ...] = ("immediate", "immediate", "fast")
"""Two crashes, and an orderly restart, which ends sessions."""


@pytest.mark.timeout(600)
def test_postgres_crashes_under_a_prepared_transaction(system: System) -> None:
    """Its row was stamped before it all, and appears after it: the barrier must have stood until then."""
    airflow = system.airflow
    logged = airflow.log_size()
    with system.fault("Postgres: 2 crashes and a restart under a prepared transaction") as fault:
        with _prepared_transaction(system, "held"):
            for mode in MODES:
                with fault.interruption(mode, of=("rows", "windows"), ends_watchers=False):
                    restarted = airflow.log_size()
                    system.services.postgres.restart(mode)
                _wait_until_told(system, restarted, "prepared transaction held of role")
        system.wait_for_news()
    assert not {"s3_objects", "gcs_objects", "mariadb_rows"} & airflow.errors_of_watchers(after=logged).keys()


@pytest.mark.quick
@pytest.mark.timeout(400)
def test_mariadb_crashes(system: System) -> None:
    """Its watcher goes on by itself; the others do not notice."""
    airflow = system.airflow
    logged = airflow.log_size()
    with system.fault("MariaDB: 2 crashes and a restart") as fault:
        for mode in MODES:
            with fault.interruption(mode, of=("mariadb_rows",), ends_watchers=False):
                system.services.mariadb.restart(mode)
            system.wait_for_news("mariadb_rows")
    others = {"s3_objects", "gcs_objects", "rows", "windows"}
    assert not others & airflow.errors_of_watchers(after=logged).keys()


@contextlib.contextmanager
def _prepared_transaction(system: System, name: str) -> Iterator[None]:
    """Have a transaction prepared meanwhile that inserted a row; commit it in the end, whatever happens."""
    postgres = system.services.postgres
    (rows,) = (source for source in system.sources if source.name == "rows")
    with contextlib.closing(postgres.connect()) as connection:
        connection.execute("begin")
        statement = (
            "insert into events (stamp, payload) values ('now', 'held') returning id, version, updated_at"
        )
        ((row, number, stamp),) = connection.execute(statement).fetchall()
        connection.execute(f"prepare transaction '{name}'")
    try:
        yield
    finally:
        sent = time.monotonic()
        postgres.execute(f"commit prepared '{name}'")
        rows.deliveries.committed.versions.append(Version(row, number, stamp, sent, time.monotonic()))


def _wait_until_told(system: System, after: int, words: str) -> None:
    """Wait until both watchers of Postgres have logged these words since the log had a size."""

    def have_told() -> bool:
        told = system.airflow.errors_of_watchers(after=after)
        return all(any(words in line for line in told.get(name, ())) for name in ("rows", "windows"))

    system.airflow.wait_until(f"line of each watcher with {words!r}", have_told)
