"""Tables as sources under test: changed by psycopg, PyMySQL and sqlite3, past the watcher."""

# ruff: noqa: S608 (the names of tables are our own)

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sqlite3
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from airflow.providers.watermark.testing import WatchedSource
from airflow.providers.watermark.triggers.sql import SQLUpdatedAtTrigger
from devtools.databases import Database
from tests.databases.wire import Wire

_NUMBERS = itertools.count(1)

_LACKS = {
    "late": "a transaction under way is told of by no name; what it commits is late, or held by the barrier",
    "turns": "the server's clock is the machine's",
}


class WatchedTable(WatchedSource):
    """
    What all databases have in common.

    :param conn_id: The Airflow connection.
    :param payload: ``"keys"``, ``"rows"`` or ``"window"``.
    """

    count_limit: ClassVar[str] = "max_rows_per_event"
    late_arrival: ClassVar[float] = 0.4
    step: ClassVar[float] = 0.02
    lacks: ClassVar[Mapping[str, str]] = {
        **_LACKS,
        "accesses": "nothing can be done between two statements of the hook's driver",
    }
    grain: ClassVar[float] = 1.0  # the column may have whole seconds
    column: ClassVar[str]
    trigger_class: ClassVar[type[SQLUpdatedAtTrigger]] = SQLUpdatedAtTrigger

    def __init__(self, conn_id: str, payload: str) -> None:
        self.conn_id = conn_id
        self.payload = payload
        if payload == "window":  # for each of which its tests have to wait
            vars(self)["late_arrival"] = min(self.late_arrival, 0.2) if self.step < 1 else self.late_arrival
        self.table = self.present_table = f"watched_{next(_NUMBERS)}"
        for table in (self.table, f"not_{self.table}"):
            columns = f"name varchar(200) primary key, version int, at {self.column}"
            self.execute(f"create table {table} ({columns})")
            self.execute(f"create index at_{table} on {table} (at, name)")

    def execute(self, sql: str, *values: Any) -> list[Any]:
        raise NotImplementedError

    def make_trigger(self, **arguments: Any) -> SQLUpdatedAtTrigger:
        given = {
            "conn_id": self.conn_id,
            "table": self.table,
            "cursor_column": "at",
            "primary_key": "name",
            "payload": self.payload,
            "columns": ["version"] if self.payload == "rows" else [],
            **arguments,
        }
        return self.trigger_class(**given)

    def make_stranger(self, **arguments: Any) -> SQLUpdatedAtTrigger:
        return self.make_trigger(**{"table": f"not_{self.table}", **arguments})

    async def put(self, *names: str, ago: float = 0.0, version: int = 1) -> None:
        stamp = self.stamp(self.now() - timedelta(seconds=ago))
        for name in names:
            self.execute(f"delete from {self.present_table} where name = %s", name)
            self.execute(f"insert into {self.present_table} values (%s, %s, %s)", name, version, stamp)

    def stamp(self, moment: datetime) -> Any:
        return moment

    def between(self, low: Any, high: Any) -> list[str]:
        where, bounds = ("at > %s and at <= %s", (low, high)) if low is not None else ("at <= %s", (high,))
        found = self.execute(f"select name from {self.present_table} where {where}", *bounds)
        return [name for (name,) in found]

    def name_of(self, change: Mapping[str, Any]) -> str:
        return str(change["key"]["name"])

    async def advance(self, seconds: float) -> None:
        await asyncio.sleep(seconds + 0.001)

    async def settle(self) -> None:
        # Seconds settle as a whole, since the column may have whole ones.
        rest_of_second = 1 - self.now().timestamp() % 1
        await self.advance(max(self.late_arrival, rest_of_second) + 2 * self.step)

    def now(self) -> datetime:
        return datetime.now(UTC)

    async def break_down(self) -> None:
        self.present_table = f"{self.table}_away"
        self.execute(f"alter table {self.table} rename to {self.present_table}")

    async def mend(self) -> None:
        self.execute(f"alter table {self.present_table} rename to {self.table}")
        self.present_table = self.table


class WatchedPostgres(WatchedTable):
    """Behind a wire that can be stopped between two statements."""

    column = "timestamptz"
    lacks: ClassVar[Mapping[str, str]] = _LACKS

    def __init__(self, database: Database, payload: str) -> None:
        self.database = database
        self.connection = database.connect()
        self.wire = Wire(database.port)
        conn_id = f"watched_postgres_{next(_NUMBERS)}"
        self._variable = f"AIRFLOW_CONN_{conn_id.upper()}"
        os.environ[self._variable] = self.wire.in_front_of(database).airflow_connection_json()
        super().__init__(conn_id, payload)

    def execute(self, sql: str, *values: Any) -> list[Any]:
        cursor = self.connection.execute(sql, values)
        return cursor.fetchall() if cursor.description else []

    def between_accesses(self, action: Callable[[], Awaitable[None]]) -> None:
        self.wire.after_answer = action

    def close(self) -> None:
        self.connection.close()
        del os.environ[self._variable]


class WatchedMariaDB(WatchedTable):
    """With microseconds."""

    column = "datetime(6)"
    lacks: ClassVar[Mapping[str, str]] = {
        **WatchedTable.lacks,
        "clock": "its stamps have no time zone, and the suite compares positions with a time that has one",
    }

    def __init__(self, database: Database, conn_id: str, payload: str) -> None:
        self.connection = database.connect()
        super().__init__(conn_id, payload)

    def execute(self, sql: str, *values: Any) -> list[Any]:
        with self.connection.cursor() as cursor:
            cursor.execute(sql, values)
            return list(cursor.fetchall())

    def make_trigger(self, **arguments: Any) -> SQLUpdatedAtTrigger:
        return super().make_trigger(**{"cursor_timezone": "UTC", **arguments})

    def stamp(self, moment: datetime) -> datetime:
        return moment.replace(tzinfo=None)

    def close(self) -> None:
        self.connection.close()


class WatchedMariaDBSeconds(WatchedMariaDB):
    """With whole seconds, as ``DATETIME`` has them by default."""

    column = "datetime"
    step: ClassVar[float] = 1.0
    late_arrival: ClassVar[float] = 2.0

    def stamp(self, moment: datetime) -> datetime:
        return super().stamp(moment).replace(microsecond=0)

    def now(self) -> datetime:
        return super().now().replace(microsecond=0)


class WatchedSQLite(WatchedTable):
    """Stamps are texts."""

    column = "text"
    lacks: ClassVar[Mapping[str, str]] = {
        **WatchedTable.lacks,
        "clock": "it stores times as texts, which are positions without a clock",
        "stamps": "what is settled is known by what was visible when, not by stamps",
    }

    def __init__(self, path: str, conn_id: str, payload: str) -> None:
        self.path = path
        super().__init__(conn_id, payload)

    def execute(self, sql: str, *values: Any) -> list[Any]:
        with contextlib.closing(sqlite3.connect(self.path, timeout=10)) as connection, connection:
            return connection.execute(sql.replace("%s", "?"), values).fetchall()

    def stamp(self, moment: datetime) -> str:
        return moment.isoformat(timespec="microseconds")
