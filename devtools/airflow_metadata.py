"""Airflow's metadata database, read without Airflow: fast enough to be asked several times a second."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

_BUSY_TIMEOUT = 60.0


@dataclass(frozen=True, slots=True)
class AssetEvent:
    """An asset event that a trigger made.

    :param timestamp: when it was stored
    :param payload: the payload of the trigger's event
    """

    id: int
    timestamp: datetime
    payload: dict[str, Any]

    @property
    def changes(self) -> list[dict[str, Any]]:
        """The changes that the event carries."""
        return list(self.payload["changes"])


@dataclass(frozen=True, slots=True)
class DagRun:
    """A Dag run, with the ids of the asset events that it was given."""

    run_id: str
    state: str
    event_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class Returned:
    """What one task instance returned, from its XCom."""

    run_id: str
    map_index: int
    value: Any


class AirflowMetadata:
    """The metadata database of a scratch Airflow.

    :param path: the SQLite file
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def url(self) -> str:
        """What Airflow is given as ``[database] sql_alchemy_conn``."""
        return f"sqlite:///{self.path}"

    def has_table(self, name: str) -> bool:
        """Tell whether this release of Airflow has a table."""
        return bool(self.rows("SELECT name FROM sqlite_master WHERE name = ?", name))

    def rows(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Return all rows of a query, which may only read.

        :param query: with ``?`` where a parameter goes
        """
        uri = f"{self.path.as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=_BUSY_TIMEOUT)) as database:
            return database.execute(query, parameters).fetchall()

    def execute(self, statement: str, *parameters: object) -> int:
        """Run a statement that changes something, and return how many rows it changed."""
        connection = sqlite3.connect(self.path, timeout=_BUSY_TIMEOUT)
        with contextlib.closing(connection) as database, database:
            return database.execute(statement, parameters).rowcount

    def set_paused(self, dag_id: str, *, paused: bool) -> None:
        """Pause or unpause a Dag, as the switch in the UI does.

        :raises LookupError: there is no such Dag
        """
        if self.execute("UPDATE dag SET is_paused = ? WHERE dag_id = ?", paused, dag_id) != 1:
            raise LookupError(f"there is no Dag {dag_id!r}")

    def asset_events(self, asset: str, *, after: int = 0) -> list[AssetEvent]:
        """Return the events of an asset in the order in which they were stored.

        :param after: leave out the events with this id or a lower one
        """
        query = """SELECT event.id, event.timestamp, event.extra
                   FROM asset_event AS event JOIN asset ON asset.id = event.asset_id
                   WHERE asset.name = ? AND event.id > ? ORDER BY event.id"""
        return [
            AssetEvent(number, _time(stored), json.loads(extra)["payload"])
            for number, stored, extra in self.rows(query, asset, after)
        ]

    def dag_runs(self, dag_id: str) -> list[DagRun]:
        """Return all runs of a Dag, oldest first."""
        query = """SELECT run.run_id, run.state, used.event_id
                   FROM dag_run AS run LEFT JOIN dagrun_asset_event AS used ON used.dag_run_id = run.id
                   WHERE run.dag_id = ? ORDER BY run.id"""
        events: dict[tuple[str, str], set[int]] = {}
        for run_id, state, event in self.rows(query, dag_id):
            events.setdefault((run_id, state), set()).update([] if event is None else [event])
        return [DagRun(run_id, state, frozenset(found)) for (run_id, state), found in events.items()]

    def stranded_events(self, asset: str, dag_id: str) -> list[int]:
        """Return the ids of events for which Airflow will start no run until yet another event comes.

        That befalls what is stored while an earlier event is still queued (apache/airflow#56050).
        """
        query = """SELECT event.id FROM asset_event AS event JOIN asset ON asset.id = event.asset_id
                   WHERE asset.name = ?
                   AND event.id NOT IN (SELECT event_id FROM dagrun_asset_event)
                   AND NOT EXISTS (SELECT 1 FROM asset_dag_run_queue WHERE target_dag_id = ?)"""
        return [number for (number,) in self.rows(query, asset, dag_id)]

    def returned(self, dag_id: str, task_id: str) -> list[Returned]:
        """Return what the instances of a task returned, in all runs."""
        query = """SELECT run_id, map_index, value FROM xcom
                   WHERE dag_id = ? AND task_id = ? AND "key" = 'return_value'
                   ORDER BY dag_run_id, map_index"""
        return [
            Returned(run, index, json.loads(value)) for run, index, value in self.rows(query, dag_id, task_id)
        ]

    def watching_triggers(self, asset: str) -> list[int]:
        """Return the ids of the triggers that watch an asset; a Dag's are gone soon after it is paused."""
        table = "asset_watcher" if self.has_table("asset_watcher") else "asset_trigger"  # below Airflow 3.2
        query = f"""SELECT watcher.trigger_id FROM {table} AS watcher
                    JOIN asset ON asset.id = watcher.asset_id WHERE asset.name = ?"""  # noqa: S608
        return [number for (number,) in self.rows(query, asset)]

    def variable_names(self, prefix: str = "") -> list[str]:
        """Return the names of the Airflow Variables that begin with ``prefix``."""
        return [name for (name,) in self.rows('SELECT "key" FROM variable') if name.startswith(prefix)]

    def import_errors(self) -> list[str]:
        """Return the stack traces of the Dag files that do not import."""
        return [trace for (trace,) in self.rows("SELECT stacktrace FROM import_error")]


def _time(value: str | datetime) -> datetime:
    """Read an instant: SQLite keeps it as text without an offset."""
    return value if isinstance(value, datetime) else datetime.fromisoformat(value).replace(tzinfo=UTC)
