"""Airflow's metadata database in Postgres, read and changed without Airflow."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.types.json import set_json_loads

from devtools.airflow_metadata import AirflowMetadata

if TYPE_CHECKING:
    from collections.abc import Iterator

    from devtools.databases import Postgres

_TIMEOUT = 10


class PostgresMetadata(AirflowMetadata):
    """The metadata database of a scratch Airflow, in Postgres.

    :param database: empty, or migrated already
    """

    def __init__(self, database: Postgres) -> None:
        self._database = database
        self._connection: psycopg.Connection | None = None

    @property
    def url(self) -> str:
        """What Airflow is given as ``[database] sql_alchemy_conn``."""
        return self._database.uri.replace("postgresql://", "postgresql+psycopg2://", 1)

    def has_table(self, name: str) -> bool:
        """Tell whether this release of Airflow has a table."""
        return bool(self.rows("SELECT 1 FROM pg_tables WHERE tablename = ?", name))

    def rows(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Return all rows of a query, which may only read."""
        try:
            return self._rows(query, parameters)
        except psycopg.OperationalError:  # the connection may be older than the server
            return self._rows(query, parameters)

    def _rows(self, query: str, parameters: tuple[object, ...]) -> list[tuple[Any, ...]]:
        with self._cursor() as cursor:
            return list(cursor.execute(_with_placeholders(query), parameters).fetchall())

    def execute(self, statement: str, *parameters: object) -> int:
        """Run a statement that changes something, and return how many rows it changed."""
        with self._cursor() as cursor:
            return cursor.execute(_with_placeholders(statement), parameters).rowcount

    def add_connection(self, name: str, document: str) -> None:
        """Store an Airflow connection, as the UI does, in plain text.

        :param document: the JSON of an ``AIRFLOW_CONN_<ID>``
        """
        fields = json.loads(document)
        values = [fields.get(key) for key in ("conn_type", "host", "port", "login", "password", "schema")]
        self.execute(
            """INSERT INTO connection (conn_id, conn_type, host, port, login, password, schema, extra,
                                       is_encrypted, is_extra_encrypted)
               VALUES (?, ?, ?, ?, ?, ?, ?, ?, false, false)""",
            name,
            *values,
            json.dumps(fields.get("extra", {})),
        )

    def change_login(self, name: str, login: str, password: str) -> None:
        """Replace the credentials of a stored Airflow connection, as a user does in the UI."""
        statement = "UPDATE connection SET login = ?, password = ? WHERE conn_id = ?"
        if self.execute(statement, login, password, name) != 1:
            raise LookupError(f"there is no connection {name!r}")

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextlib.contextmanager
    def _cursor(self) -> Iterator[psycopg.Cursor]:
        """Lend a cursor of one connection, which is made anew after the server was away."""
        if self._connection is None:
            self._connection = psycopg.connect(
                self._database.uri, autocommit=True, connect_timeout=_TIMEOUT, options="-c timezone=UTC"
            )
            set_json_loads(_as_text, self._connection)  # as SQLite gives it
        try:
            with self._connection.cursor() as cursor:
                yield cursor
        except psycopg.OperationalError:
            self.close()
            raise


def _with_placeholders(query: str) -> bytes:
    return query.replace("%", "%%").replace("?", "%s").encode()


def _as_text(document: str | bytes) -> str:
    return document if isinstance(document, str) else bytes(document).decode()
