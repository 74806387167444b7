"""Connections to the database of the ``sql`` store: one pool for all watchers of a process."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from airflow.providers.watermark.exceptions import ConfigurationError, StoreError
from airflow.providers.watermark.sql.links import connect_options
from airflow.providers.watermark.stores.base import has_supervisor
from airflow.providers.watermark.version_compat import call_supervised, get_connection

if TYPE_CHECKING:
    from ssl import SSLContext

    from sqlalchemy.ext.asyncio import AsyncEngine

__all__ = [
    "MissingFileError",
    "Pool",
    "close_pool",
    "create_file",
    "dialect_of",
    "explained",
    "open_engine",
    "pool_of",
    "read_connection",
    "require_sqlalchemy",
]

CONNECT_TIMEOUT: Final = 10.0

version = cache(metadata.version)  # each trigger of a Dag file asks, whenever that is parsed
_DIALECTS: Final = {
    "postgres": "postgresql+asyncpg",
    "postgresql": "postgresql+asyncpg",
    "mysql": "mysql+aiomysql",
    "mariadb": "mysql+aiomysql",
    "sqlite": "sqlite+aiosqlite",
}


class MissingFileError(StoreError):
    """SQLite's file is not there."""


@dataclass(slots=True)
class Pool:
    """
    Connections of one event loop to one database.

    :ivar current: Whether the database is known to have the table that this release needs.
    """

    engine: AsyncEngine
    current: bool = False


_POOLS: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Pool]] = WeakKeyDictionary()


async def pool_of(conn_id: str) -> Pool:
    """
    Give the pool that all watchers in this event loop share.

    :raises ConfigurationError: The Airflow connection is missing or wrong, or the driver is missing.
    """
    pools = _POOLS.setdefault(asyncio.get_running_loop(), {})
    if conn_id not in pools:
        dialect = dialect_of(await read_connection(conn_id), conn_id)
        if conn_id not in pools:
            # A save is one statement. The ping finds what a restart of the database has cut.
            pools[conn_id] = Pool(
                open_engine(
                    conn_id,
                    dialect,
                    isolation_level="AUTOCOMMIT",
                    pool_pre_ping=True,
                    pool_recycle=1800,
                    **({} if dialect.startswith("sqlite") else {"pool_size": 5, "max_overflow": 5}),
                )
            )
    return pools[conn_id]


async def close_pool(conn_id: str) -> None:
    """Close the pool of this event loop, if there is one."""
    if pool := _POOLS.get(asyncio.get_running_loop(), {}).pop(conn_id, None):
        await pool.engine.dispose()


async def read_connection(conn_id: str) -> Any:
    """
    Read the Airflow connection: through the supervisor, or on the command line as the server does.

    :raises ConfigurationError: There is none.
    """

    def read() -> Any:
        if has_supervisor():
            return get_connection(conn_id)
        from airflow.models.connection import Connection as ServerConnection

        return ServerConnection.get_connection_from_secrets(conn_id)

    try:
        return await call_supervised(read)
    except Exception as error:
        msg = (
            f"the connection {conn_id!r} of [watermark] sql_conn_id cannot be read ({type(error).__name__}); "
            "create or correct it, or name another one"
        )
        raise ConfigurationError(msg) from error


def dialect_of(connection: Any, conn_id: str) -> str:
    """
    Choose SQLAlchemy's dialect and driver.

    :raises ConfigurationError: The connection is of another kind.
    """
    try:
        return _DIALECTS[connection.conn_type]
    except KeyError:
        msg = (
            f"the connection {conn_id!r} of [watermark] sql_conn_id is of type {connection.conn_type!r}; the "
            "sql store needs one of the types postgres, mysql and sqlite"
        )
        raise ConfigurationError(msg) from None


def require_sqlalchemy() -> None:
    """
    See to it that SQLAlchemy is one that can be used; one that is missing is told when it is needed.

    :raises ConfigurationError: It is too old.
    """
    try:
        found = version("sqlalchemy")
    except ImportError:
        return
    if found.startswith(("0.", "1.")):
        msg = (
            f"the sql store needs SQLAlchemy 2, and so Airflow 3.1 or later; here is SQLAlchemy {found}. "
            "Upgrade Airflow, or choose another store"
        )
        raise ConfigurationError(msg)


def open_engine(conn_id: str, dialect: str, **options: Any) -> AsyncEngine:
    """
    Make an engine that reads the Airflow connection for each database connection, so a new password is used.

    :raises ConfigurationError: SQLAlchemy or the driver is missing.
    """

    async def connect() -> Any:
        connection = await read_connection(conn_id)
        dialect_of(connection, conn_id)
        return await _OPENERS[dialect](connection)

    try:
        from sqlalchemy.ext.asyncio import create_async_engine

        # No parameters in errors: they are watermarks.
        return create_async_engine(f"{dialect}://", async_creator=connect, hide_parameters=True, **options)
    except ImportError as error:
        driver = dialect.partition("+")[2]
        msg = f"{error}; pip install 'airflow-provider-watermark[store-sql]' {driver}"
        raise ConfigurationError(msg) from error


def explained(error: Exception) -> str:
    """Tell an error without its text, which may carry what is secret."""
    original = getattr(error, "orig", None)  # the driver's, behind SQLAlchemy's two
    found = error if original is None else original.__cause__ or original
    name = type(found).__name__
    # Postgres's drivers have a class for each error; MySQL's have a number, and SQLite's a name.
    number = found.args[0] if name == "OperationalError" and found.args else None
    code = number if isinstance(number, int) else getattr(found, "sqlite_errorname", None)
    return name if code is None else f"{name} {code}"


async def _open_postgres(connection: Any) -> Any:
    import asyncpg  # type: ignore[import-untyped, unused-ignore]

    options = connect_options(connection, application_name="airflow-provider-watermark")
    return await asyncpg.connect(**options, timeout=CONNECT_TIMEOUT)


async def _open_mysql(connection: Any) -> Any:
    import aiomysql  # type: ignore[import-untyped, unused-ignore]
    from pymysql.constants import CLIENT  # type: ignore[import-untyped, unused-ignore]

    extra = connection.extra_dejson
    return await aiomysql.connect(
        host=connection.host or "localhost",
        port=int(connection.port or 3306),
        user=connection.login,
        password=connection.password or "",
        db=connection.schema,
        unix_socket=extra.get("unix_socket"),
        ssl=_mysql_tls(extra),
        charset="utf8mb4",
        client_flag=CLIENT.FOUND_ROWS,
        connect_timeout=CONNECT_TIMEOUT,
        program_name="airflow-provider-watermark",
    )


def _mysql_tls(extra: dict[str, Any]) -> SSLContext | None:
    files = extra.get("ssl")
    if not files:
        return None
    import ssl

    files = json.loads(files) if isinstance(files, str) else files
    context = ssl.create_default_context(cafile=files.get("ca"), capath=files.get("capath"))
    if files.get("cert"):
        context.load_cert_chain(files["cert"], files.get("key"))
    return context


async def _open_sqlite(connection: Any) -> Any:
    import aiosqlite

    path = _sqlite_path(connection)
    # Only a migration makes the file: an empty one in a wrong place would look like watermarks that are gone.
    opened = aiosqlite.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=CONNECT_TIMEOUT)
    # As SQLAlchemy does: a connection must not keep the process from ending.
    thread: Any = getattr(opened, "_thread", opened)
    thread.daemon = True
    try:
        return await opened
    except aiosqlite.Error as error:
        # It tells the event loop that it ends, with a traceback if that has been closed.
        await asyncio.to_thread(thread.join)
        if await asyncio.to_thread(path.exists):
            raise
        raise MissingFileError(str(path)) from error


def create_file(connection: Any) -> None:
    """
    Make the file of an SQLite database, if it is not there.

    :raises ConfigurationError: The connection names none, or its folder is not there.
    """
    path = _sqlite_path(connection)
    if not path.parent.is_dir():
        msg = (
            f"the folder of the SQLite file {str(path)!r}, which the connection of [watermark] sql_conn_id "
            "names, does not exist; create it, or correct the connection"
        )
        raise ConfigurationError(msg)
    if not path.exists():
        path.touch(mode=0o644)


def _sqlite_path(connection: Any) -> Path:
    """
    Give the path of an SQLite database.

    :raises ConfigurationError: There is none, or it is another file in each folder, or memory.
    """
    path = connection.host or connection.schema
    if not path:
        msg = "the SQLite connection of [watermark] sql_conn_id names no file; give its path as the host"
        raise ConfigurationError(msg)
    if not Path(path).is_absolute():
        msg = (
            f"the SQLite connection of [watermark] sql_conn_id names {path!r}, which is no absolute path; "
            "give one as the host, or as a URI with four slashes: sqlite:////folder/watermarks.db"
        )
        raise ConfigurationError(msg)
    return Path(path)


_OPENERS: Final = {
    "postgresql+asyncpg": _open_postgres,
    "mysql+aiomysql": _open_mysql,
    "sqlite+aiosqlite": _open_sqlite,
}
