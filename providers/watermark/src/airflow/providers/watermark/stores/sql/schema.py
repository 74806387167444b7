"""The table, how it is created and upgraded, and how a store finds out that it has not been."""

from __future__ import annotations

import asyncio
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Final

from airflow.providers.watermark.exceptions import ConfigurationError, StoreError
from airflow.providers.watermark.settings import sql_conn_id
from airflow.providers.watermark.stores.sql.engine import (
    create_file,
    dialect_of,
    explained,
    open_engine,
    read_connection,
    require_sqlalchemy,
)

if TYPE_CHECKING:
    from sqlalchemy import Connection, Table
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

__all__ = ["MAX_PART", "REVISION", "VERSION_TABLE", "migrate", "require_schema", "table"]

REVISION: Final = "0001"
"""What the newest migration makes."""

MAX_PART: Final = 200
"""Characters of a key's part: a unique index of three has at most 2704 bytes in Postgres, 3072 in MySQL."""

VERSION_TABLE: Final = "asset_watermarks_version"

_TRIES: Final = 4
_PAUSE: Final = 0.5
"""Seconds before a migration is tried again."""

_TRY_AGAIN_WITHIN: Final = 10.0
"""Seconds after which it is not: who has waited for a lock has waited for long enough."""

_LOCK_TIMEOUT: Final = 30
"""Seconds that a migration waits for a lock."""

_LOCKED: Final = frozenset({"LockNotAvailableError", "OperationalError 1205", "OperationalError SQLITE_BUSY"})


@functools.cache
def table() -> Table:
    """Describe the table ``asset_watermarks``, as far as queries need it; migrations create it."""
    import sqlalchemy as sa

    return sa.Table(
        "asset_watermarks",
        sa.MetaData(),
        sa.Column("asset_name", sa.String),
        sa.Column("namespace", sa.String),
        sa.Column("key", sa.String),
        sa.Column("value", sa.Text),
        sa.Column("revision", sa.BigInteger),
        sa.Column("updated_at", sa.DateTime(timezone=True)),
    )


def require_schema(connection: Connection, where: str) -> None:
    """
    See to it that the database has the table that this release knows.

    :param connection: To the database; ``AsyncConnection.run_sync`` gives it.
    :param where: The database, for people.
    :raises StoreError: It has not. The store goes on by itself once it has been migrated.
    """
    import sqlalchemy as sa

    revision = None
    if sa.inspect(connection).has_table(VERSION_TABLE):
        revision = connection.scalar(sa.text(f"SELECT version_num FROM {VERSION_TABLE}"))  # noqa: S608
    if revision is None or not sa.inspect(connection).has_table(table().name):
        msg = f"{where} has no table {table().name} yet; run 'airflow watermarks migrate'"
        raise StoreError(msg)
    if revision != REVISION:
        msg = (
            f"{where} has the table {table().name} of revision {revision!r}, and this release needs "
            f"{REVISION!r}; run 'airflow watermarks migrate' with the newest release that uses it, and use "
            "that release everywhere"
        )
        raise StoreError(msg)


def migrate() -> str:
    """
    Create or upgrade the table of the ``sql`` store; not to be called while an event loop runs.

    What is up to date is left as it is.

    :return: The revision that the table has now.
    :raises ConfigurationError: ``[watermark] sql_conn_id`` is not set, its connection is wrong, the extra
        ``store-sql`` is not installed, or Airflow is older than 3.1.
    :raises StoreError: The database cannot be reached or does not let us, or the tables are locked for half
        a minute.
    """
    require_sqlalchemy()
    return asyncio.run(_migrate(sql_conn_id()))


async def _migrate(conn_id: str) -> str:
    where = f"the database of the connection {conn_id!r}"
    try:
        import alembic  # noqa: F401
    except ImportError as error:
        msg = f"{error}; pip install 'airflow-provider-watermark[store-sql]'"
        raise ConfigurationError(msg) from error
    airflow_connection = await read_connection(conn_id)
    engine = open_engine(conn_id, dialect_of(airflow_connection, conn_id))
    try:
        if engine.dialect.name == "sqlite":
            create_file(airflow_connection)
        await _upgrade_in(engine)
        async with engine.connect() as connection:
            await _limit_waits(connection)
            await connection.run_sync(require_schema, where)
    except (ConfigurationError, StoreError):
        raise
    except Exception as error:
        why = explained(error)
        what = "correct the connection, or its privileges"
        if why in _LOCKED:
            what = (
                f"another session has locked {table().name} or {VERSION_TABLE} for {_LOCK_TIMEOUT} s: end "
                "it, and run this again. Postgres shows it in pg_stat_activity, MySQL in SHOW PROCESSLIST"
            )
        msg = f"{where} could not be migrated ({why}); {what}"
        raise StoreError(msg) from error
    finally:
        await engine.dispose()
    return REVISION


async def _upgrade_in(engine: AsyncEngine) -> None:
    """Upgrade; again, if somebody else does so just now: as replicas do that are deployed together."""
    from alembic.util import CommandError
    from sqlalchemy.exc import DBAPIError

    clock = asyncio.get_running_loop().time
    end = clock() + _TRY_AGAIN_WITHIN
    for tries_left in reversed(range(_TRIES)):
        try:
            async with engine.begin() as connection:
                await _limit_waits(connection)
                await connection.run_sync(_upgrade)
        except CommandError:  # it knows no such revision: whoever looks at it next tells so
            return
        except DBAPIError:
            if not tries_left or clock() > end:
                raise
            await asyncio.sleep(_PAUSE)
        else:
            return


async def _limit_waits(connection: AsyncConnection) -> None:
    """Wait for no lock for ever: a thread that waits for the database is not to be interrupted."""
    import sqlalchemy as sa

    limits = {
        "postgresql": f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}s'",
        "mysql": f"SET lock_wait_timeout = {_LOCK_TIMEOUT}, innodb_lock_wait_timeout = {_LOCK_TIMEOUT}",
        "sqlite": f"PRAGMA busy_timeout = {_LOCK_TIMEOUT * 1000}",
    }
    await connection.execute(sa.text(limits[connection.dialect.name]))


def _upgrade(connection: Connection) -> None:
    import sqlalchemy as sa
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    config.attributes["version_table"] = VERSION_TABLE
    tables = sa.inspect(connection)
    if tables.has_table(VERSION_TABLE) and not tables.has_table(table().name):
        command.stamp(config, "base", purge=True)  # somebody has dropped the table alone
    command.upgrade(config, "head")
