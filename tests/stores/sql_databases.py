"""Databases for the ``sql`` store, each with its table."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow.providers.watermark.stores import WatermarkKey
from airflow.providers.watermark.stores.sql import SqlStore, migrate
from airflow.providers.watermark.testing import StoreBackend
from devtools.databases import mariadb, postgres


class SqlDatabase(StoreBackend):
    """
    A database with the table.

    :param execute: Runs a statement past the store.
    :param mark: How the statement marks a parameter.
    """

    def __init__(self, execute: Callable[..., list[Any]], mark: str = "%s") -> None:
        self.execute, self._mark = execute, mark

    def make_store(self) -> SqlStore:
        return SqlStore()

    async def break_down(self) -> None:
        self.execute("ALTER TABLE asset_watermarks RENAME TO elsewhere")

    async def mend(self) -> None:
        self.execute("ALTER TABLE elsewhere RENAME TO asset_watermarks")

    async def plant(self, key: WatermarkKey, text: str) -> None:
        update = f"UPDATE asset_watermarks SET value = {self._mark} WHERE asset_name = {self._mark}"  # noqa: S608
        self.execute(update, (text, key.asset_name))


def sqlite_execute(path: Path) -> Callable[..., list[Any]]:
    def execute(statement: str, parameters: tuple[Any, ...] = ()) -> list[Any]:
        with contextlib.closing(sqlite3.connect(path, timeout=30)) as connection, connection:
            return connection.execute(statement, parameters).fetchall()

    return execute


@contextlib.contextmanager
def sql_database(name: str, folder: Path) -> Iterator[SqlDatabase]:
    """
    Start a database, configure the ``sql`` store for it, and create the table.

    :param name: ``sqlite``, ``postgres`` or ``mariadb``.
    :param folder: A scratch folder.
    """
    with contextlib.ExitStack() as stack:
        if name == "sqlite":
            path = folder / "watermarks.db"
            connection = f'{{"conn_type": "sqlite", "host": "{path}"}}'
            database = SqlDatabase(sqlite_execute(path), "?")
        else:
            server = stack.enter_context(postgres() if name == "postgres" else mariadb())
            connection = server.airflow_connection_json()
            database = SqlDatabase(server.execute)
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("AIRFLOW__WATERMARK__SQL_CONN_ID", "watermarks")
        patch.setenv("AIRFLOW_CONN_WATERMARKS", connection)
        migrate()
        yield database
