"""What the SQL watcher asks a database, and how it reaches one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.providers.watermark.exceptions import ConfigurationError
from airflow.providers.watermark.version_compat import call_supervised, get_connection

__all__ = ["open_database"]


async def open_database(
    conn_id: str,
    *,
    user: str,
    ignore_roles: Sequence[str],
    max_bound_wait: float | None,
    log: Any,
) -> Any:
    """
    Connect to the database of an Airflow connection: Postgres through asyncpg, others through their hook.

    :param user: What the server is told of who watches: the name of an asset.
    :raises ConfigurationError: The connection is missing or wrong, or an extra is not installed.
    :raises SourceError: The server cannot be reached just now.
    """
    from airflow.providers.watermark.sql.dbapi import DbApiDatabase
    from airflow.providers.watermark.sql.postgres import PostgresDatabase

    try:
        conn_type = str((await call_supervised(get_connection, conn_id)).conn_type)
    except Exception as error:
        msg = (
            f"the connection {conn_id!r} does not exist or cannot be read ({type(error).__name__}); create it"
        )
        raise ConfigurationError(msg) from error
    database: PostgresDatabase | DbApiDatabase
    if conn_type == "postgres":
        database = PostgresDatabase(
            conn_id,
            user=user,
            ignore_roles=ignore_roles,
            max_bound_wait=max_bound_wait,
            log=log,
        )
    else:
        database = DbApiDatabase(conn_id, log=log)
    try:
        await database.open()
    except BaseException:
        await database.close()
        raise
    return database
