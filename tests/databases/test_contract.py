"""
The SQL watcher keeps the contracts of all watchers, on Postgres, MariaDB and SQLite.

Keys and rows differ in how a row is told and read: the parts about delivery are enough for the second.
"""

from __future__ import annotations

import os

import pytest
import pytest_asyncio

from airflow.providers.watermark.testing import WatcherContract, WindowContract
from airflow.providers.watermark.testing.watching.delivering import DeliveringContract, LimitsContract
from airflow.providers.watermark.testing.watching.windows import WindowsContract
from tests.databases.running import connection
from tests.databases.watched_tables import (
    WatchedMariaDB,
    WatchedMariaDBSeconds,
    WatchedPostgres,
    WatchedSQLite,
)


class OnPostgres:
    payload: str

    @pytest_asyncio.fixture
    async def source(self, server):
        source = WatchedPostgres(server, self.payload)
        async with source.wire.opened():
            yield source
        source.close()


class TestKeysOnPostgres(OnPostgres, WatcherContract):
    payload = "keys"


class TestWindowsOnPostgres(OnPostgres, WindowContract):
    payload = "window"


class TestRowsOnPostgres(OnPostgres, DeliveringContract, LimitsContract):
    payload = "rows"


class OnMariaDB:
    payload: str

    @pytest.fixture
    def source(self, running_mariadb):
        with connection(running_mariadb) as conn_id:
            source = WatchedMariaDB(running_mariadb, conn_id, self.payload)
            yield source
            source.close()


class TestKeysOnMariaDB(OnMariaDB, WatcherContract):
    payload = "keys"


class TestWindowsOnMariaDB(OnMariaDB, WindowContract):
    payload = "window"


class TestRowsOnMariaDB(OnMariaDB, DeliveringContract):
    payload = "rows"


class TestWindowsOfWholeSecondsOnMariaDB(WindowsContract):
    @pytest.fixture
    def source(self, running_mariadb):
        with connection(running_mariadb) as conn_id:
            source = WatchedMariaDBSeconds(running_mariadb, conn_id, "window")
            yield source
            source.close()


class TestWholeSecondsOnMariaDB(DeliveringContract):
    @pytest.fixture
    def source(self, running_mariadb):
        with connection(running_mariadb) as conn_id:
            source = WatchedMariaDBSeconds(running_mariadb, conn_id, "rows")
            yield source
            source.close()


class OnSQLite:
    payload: str

    @pytest.fixture
    def source(self, tmp_path, monkeypatch):
        path = tmp_path / "watched.db"
        monkeypatch.setitem(os.environ, "AIRFLOW_CONN_WATCHED_SQLITE", f"sqlite:///{path}")
        return WatchedSQLite(str(path), "watched_sqlite", self.payload)


class TestKeysOnSQLite(OnSQLite, WatcherContract):
    payload = "keys"


class TestWindowsOnSQLite(OnSQLite, WindowContract):
    payload = "window"


class TestRowsOnSQLite(OnSQLite, DeliveringContract):
    payload = "rows"
